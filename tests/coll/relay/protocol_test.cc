// The protocol of the relay (relay.cu) as a model: a root and the others go through broadcasts in
// random turns, each block moving units that it takes one by one, over memory in which nothing but
// a release is in order. Whoever reads must find what was sent for this call, a call ends with all
// of the message in its place, and somebody can always go on, with one block per GPU too. With any
// of the protocol's steps left out or out of place the model must find what comes of it. It shares
// the shape and the flags' rows (relay.h) with the kernel; of every tile there is one word.
#include <gtest/gtest.h>

#include <memory>

#include "coll/relay/relay.h"
#include "support/weak_memory.h"

namespace braid::coll {
namespace {

using test::ModelKernel;
using test::ModelStep;
using test::WeakMemory;

/// What is done otherwise than relay.cu does it.
enum class Slip {
  kNone,
  // Right as well:
  kExactEpochs,  // behind a barrier nobody sees a flag of a later call
  // Wrong:
  kNoBarrier,          // a call begins where others are in the one before
  kTellsBeforeStores,  // the flag in front of the unit's stores
  kPlainFlags,         // no fence between them
  kLoadsBeforeFlag,    // no acquire: a load passes in front of the wait
  kEndsUnheard,        // without waiting for what the others send
  kForgetsAnOther,     // a unit is sent to all but one
  kEpochsBeginAnew,    // with every call: flags are never reset
  kUnitsStayTaken      // the next call's count is not set back
};

struct Broadcast {
  RelayShape shape;
  int root;
};

class RelayModel {
 public:
  RelayModel(int num_ranks, std::vector<Broadcast> calls, Slip slip, std::mt19937& random)
      : num_ranks_(num_ranks), calls_(std::move(calls)), slip_(slip) {
    for (int r = 0; r < num_ranks; ++r) {
      num_blocks_.push_back(1 + random() % 3);
      resident_.push_back(1 + random() % 3);
    }
    for (auto& next : next_unit_) next.assign(static_cast<size_t>(num_ranks), 0);
    came_.assign(calls_.size(), 0);
  }

  std::string run(std::mt19937& random) {
    // A kernel of the barrier stands in front of every call's.
    return run_kernels(num_ranks_, 2 * calls_.size(), memory_, random, error_,
                       [&](int rank, size_t kernel) {
                         return kernel % 2 == 0 ? barrier(kernel / 2) : relay(rank, kernel / 2);
                       });
  }

 private:
  enum Area : int64_t { kFlag, kPlace };
  struct Block {
    int rank;
    size_t call;
    size_t index;
    WeakMemory::Writer writer;
  };
  /// A block moves a unit at a time; what it does next depends on what it took.
  struct Mover {
    Block block;
    std::vector<ModelStep> todo;
    bool is_through = false;
  };

  int other(const Broadcast& call, uint32_t index) const {
    return (call.root + 1 + static_cast<int>(index)) % num_ranks_;
  }
  uint32_t own(const Broadcast& call, int rank) const {
    return static_cast<uint32_t>((rank - call.root - 1 + num_ranks_) % num_ranks_);
  }
  int64_t epoch(size_t call) const {
    return slip_ == Slip::kEpochsBeginAnew ? 1 : static_cast<int64_t>(call) + 1;
  }
  uint32_t& next_unit(size_t call, int rank) {
    return next_unit_[(call + 1) % 2][static_cast<size_t>(rank)];
  }
  static int64_t text(size_t call, uint64_t tile) {
    return static_cast<int64_t>(1 + (call << 20 | tile));
  }
  static WeakMemory::Address flag(int at, int source, uint32_t row) {
    return {kFlag, at, int64_t{source} * kMostRelayRows + row};
  }
  static WeakMemory::Address word(int rank, uint64_t tile) {
    return {kPlace, rank, static_cast<int64_t>(tile)};
  }
  bool has_landed(const Block& b, int source, uint32_t row) const {
    const int64_t seen = memory_.load(flag(b.rank, source, row));
    return slip_ == Slip::kExactEpochs ? seen == epoch(b.call) : seen >= epoch(b.call);
  }

  /// All ranks are here, and see what any of them wrote before.
  ModelKernel barrier(size_t call) {
    ModelKernel made;
    made.blocks.resize(1);
    made.blocks[0].push_back([this, call] {
      ++came_[call];
      return true;
    });
    made.blocks[0].push_back(
        [this, call] { return slip_ == Slip::kNoBarrier || came_[call] == num_ranks_; });
    return made;
  }

  /// Loads a unit from where this rank has it, stores it with `to`, and tells them.
  void move(Mover& m, uint32_t row, uint32_t owner, const std::vector<int>& to) {
    const Block b = m.block;
    const Broadcast& call = calls_[b.call];
    const bool is_root = b.rank == call.root;
    const uint64_t first = call.shape.begin_of(row, owner) / kBulkTileBytes;
    const uint64_t end =
        first + divided_up(uint64_t{call.shape.bytes_of(row, owner)}, uint64_t{kBulkTileBytes});
    const ModelStep wait = [=, this] { return is_root || has_landed(b, calls_[b.call].root, row); };
    std::vector<ModelStep> tells, stores;
    for (const int peer : to)
      tells.push_back([=, this] {
        if (slip_ == Slip::kPlainFlags)
          memory_.store(b.writer, flag(peer, b.rank, row), epoch(b.call));
        else
          memory_.release(b.writer, flag(peer, b.rank, row), epoch(b.call));
        return true;
      });
    for (uint64_t tile = first; tile < end; ++tile) {
      const auto loaded = std::make_shared<int64_t>(0);
      stores.push_back([=, this] {
        *loaded = is_root ? text(b.call, tile) : memory_.load(word(b.rank, tile));
        if (*loaded != text(b.call, tile)) error_ = "a tile is passed on that has not landed";
        return true;
      });
      if (slip_ == Slip::kLoadsBeforeFlag && tile == first) stores.push_back(wait);
      for (const int peer : to)
        stores.push_back([=, this] {
          memory_.store(b.writer, word(peer, tile), *loaded);
          return true;
        });
    }
    if (slip_ != Slip::kLoadsBeforeFlag) m.todo.push_back(wait);
    const bool tells_first = slip_ == Slip::kTellsBeforeStores;
    for (const auto* part : {tells_first ? &tells : &stores, tells_first ? &stores : &tells})
      m.todo.insert(m.todo.end(), part->begin(), part->end());
  }

  /// The next unit that nobody has taken; false: there is none.
  bool take(Mover& m) {
    const Block& b = m.block;
    const Broadcast& call = calls_[b.call];
    const uint32_t others = call.shape.num_others;
    const bool is_root = b.rank == call.root;
    const uint32_t number = next_unit(b.call, b.rank)++;
    if (number >= call.shape.num_rows() * (is_root ? others : 1)) return false;
    if (is_root) {
      move(m, number / others, number % others, {other(call, number % others)});
      return true;
    }
    std::vector<int> to;
    for (uint32_t i = 1; i < others; ++i)
      to.push_back(other(call, (own(call, b.rank) + i) % others));
    if (slip_ == Slip::kForgetsAnOther) to.pop_back();
    move(m, number, own(call, b.rank), to);
    return true;
  }

  /// As await_all().
  void await_all(Mover& m) {
    const Block b = m.block;
    const Broadcast& call = calls_[b.call];
    if (b.rank == call.root || slip_ == Slip::kEndsUnheard) return;
    for (uint32_t i = 0; i < call.shape.num_others; ++i)
      for (uint32_t row = static_cast<uint32_t>(b.index); row < call.shape.num_rows();
           row += static_cast<uint32_t>(num_blocks_[static_cast<size_t>(b.rank)])) {
        const int owner = other(call, i);
        if (owner != b.rank) m.todo.push_back([=, this] { return has_landed(b, owner, row); });
      }
  }

  /// The kernel behind: the message is read where it landed.
  void look(const Block& b) {
    const Broadcast& call = calls_[b.call];
    for (uint64_t tile = 0; b.rank != call.root && tile * kBulkTileBytes < call.shape.bytes; ++tile)
      if (memory_.load(word(b.rank, tile)) != text(b.call, tile))
        error_ = "a call ended before all had landed";
  }

  /// As end_call(): the last block sets back the next call's units.
  void end(const Mover& m, size_t num_blocks, size_t* num_ended) {
    const Block& b = m.block;
    if (++*num_ended < num_blocks) return;
    look(b);
    if (slip_ != Slip::kUnitsStayTaken) next_unit(b.call + 1, b.rank) = 0;
  }

  ModelKernel relay(int rank, size_t call) {
    ModelKernel made;
    made.resident = resident_[static_cast<size_t>(rank)];
    const size_t count = num_blocks_[static_cast<size_t>(rank)];
    made.blocks.resize(count);
    const auto movers = std::make_shared<std::vector<Mover>>(count);
    const auto num_ended = std::make_shared<size_t>(0);
    for (size_t i = 0; i < count; ++i)
      (*movers)[i].block = {rank, call, i, {rank, static_cast<int>(i), 2 * call + 1}};
    made.more = [=, this](size_t block) {
      Mover& m = (*movers)[block];
      m.todo.clear();
      if (m.is_through || take(m)) return m.todo;
      m.is_through = true;
      await_all(m);
      m.todo.push_back([this, &m, count, num_ended] {  // `m` lives as long as the kernel
        end(m, count, num_ended.get());
        return true;
      });
      return m.todo;
    };
    return made;
  }

  const int num_ranks_;
  const std::vector<Broadcast> calls_;
  const Slip slip_;
  std::vector<size_t> num_blocks_, resident_;  // each rank's own choice
  std::vector<uint32_t> next_unit_[2];         // [epoch % 2][rank], as DirectState
  std::vector<int> came_;
  WeakMemory memory_;
  std::string error_;
};

/// What went wrong in the first run in which something did.
std::string play_relay(Slip slip) {
  for (unsigned seed = 0; seed < 80; ++seed) {
    std::mt19937 random(seed);
    const int num_ranks = 3 + static_cast<int>(seed % 2);
    const auto num_others = static_cast<uint32_t>(num_ranks - 1);
    std::vector<Broadcast> calls;
    for (int i = 0; i < 5; ++i) {
      const uint64_t bytes = 1 + random() % (7 * num_others * kLeastRelayUnitBytes / 2);
      calls.push_back({{bytes, num_others, kLeastRelayUnitBytes},
                       static_cast<int>(random() % static_cast<unsigned>(num_ranks))});
    }
    RelayModel model(num_ranks, std::move(calls), slip, random);
    const std::string error = model.run(random);
    if (!error.empty()) return error + ", seed " + std::to_string(seed);
  }
  return "";
}

TEST(RelayProtocol, BringsEveryTileAndNeverHangs) { EXPECT_EQ(play_relay(Slip::kNone), ""); }

TEST(RelayProtocol, NoFlagOfALaterCallIsSeen) { EXPECT_EQ(play_relay(Slip::kExactEpochs), ""); }

TEST(RelayProtocol, EveryStepIsNeeded) {
  const std::pair<Slip, const char*> slips[] = {
      {Slip::kNoBarrier, "a tile is overwritten that is being passed on"},
      {Slip::kTellsBeforeStores, "a flag is told too early"},
      {Slip::kPlainFlags, "a flag is seen too early"},
      {Slip::kLoadsBeforeFlag, "a load passes the wait"},
      {Slip::kEndsUnheard, "what the others send is not there"},
      {Slip::kForgetsAnOther, "somebody waits for a unit that does not come"},
      {Slip::kEpochsBeginAnew, "a flag says what an earlier call said"},
      {Slip::kUnitsStayTaken, "nobody moves the units of a later call"},
  };
  for (const auto& [slip, what] : slips) EXPECT_NE(play_relay(slip), "") << what;
}

}  // namespace
}  // namespace braid::coll
