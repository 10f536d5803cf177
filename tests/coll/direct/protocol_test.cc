// The protocol of direct kernels (direct.cuh) as a model: every rank's blocks take their steps in
// random turns, some ranks far slower than others, through random sequences of calls, over memory
// in which nothing but a release is in order. What is read must be what was sent for this call, and
// somebody can always go on, with one block per GPU too. With any of the protocol's steps left out
// or out of place the model must find what comes of it. It shares the cut of halves and flags
// (direct.h) with the kernels, which need a GPU; of a chunk there is one word.
#include <gtest/gtest.h>

#include "base/sanitizer.h"
#include "coll/direct/direct.h"
#include "support/weak_memory.h"

namespace braid::coll {
namespace {

using test::ModelKernel;
using test::ModelStep;
using test::WeakMemory;

enum class Way { kGather, kToAll, kTwoShot, kBroadcast };
struct Call {
  Way way;
  int root;
  uint64_t num_chunks;  // of a slot
};

/// What is done otherwise than direct.cuh does it.
enum class Change {
  kNone,
  kOneHalf,           // even and odd epochs use the same one
  kNoGreeting,        // a root hears nothing
  kFlagBeforeData,    // the release in front of the chunk's stores
  kPlainFlags,        // a plain store behind them
  kLoadsBeforeFlag,   // no acquire: a load passes in front of the wait
  kExactEpochs,       // a flag of a later epoch is waited for in vain
  kEpochsBeginAnew,   // with every call: flags are never reset
  kForgetsAPeer,      // a slot of no bytes has no chunk, and is not told
  kCopiesFirst,       // blocks of copies have the lower numbers
  kEndsBeforeItsWork  // the first block that is through ends the call
};

class DirectModel {
 public:
  DirectModel(int num_ranks, std::vector<Call> calls, Change change, std::mt19937& random)
      : calls_(std::move(calls)), change_(change), ranks_(static_cast<size_t>(num_ranks)) {
    for (Rank& rank : ranks_) {
      rank.blocks_of_kind = 1 + random() % 2;
      rank.resident = 1 + random() % 6;
    }
  }

  std::string run(std::mt19937& random) {
    return run_kernels(size(), calls_.size(), memory_, random, error_,
                       [&](int rank, size_t call) { return kernel(rank, call); });
  }

 private:
  enum Area : int64_t { kFlag, kData };
  struct Rank {
    uint64_t blocks_of_kind, resident;  // each rank's own choice
    uint64_t epoch = 0;                 // of the last call that ended, as DirectState
    uint64_t blocks_done = 0;
  };
  struct Block {
    int rank;
    size_t number;  // of the call
    uint64_t index, count;
    WeakMemory::Writer writer;
    std::vector<ModelStep>* steps;
  };

  int size() const { return static_cast<int>(ranks_.size()); }
  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  /// A call's epoch is read as its blocks begin; none ends before all have.
  int64_t epoch(int rank, size_t call) {
    return change_ == Change::kEpochsBeginAnew     ? 1
           : change_ == Change::kEndsBeforeItsWork ? static_cast<int64_t>(at(rank).epoch) + 1
                                                   : static_cast<int64_t>(call) + 1;
  }
  static int64_t text(size_t call, int region, int from, int to, uint64_t chunk) {
    return static_cast<int64_t>(
        1 + ((((call * 4 + static_cast<uint64_t>(region)) * 8 + static_cast<uint64_t>(from)) * 8 +
              static_cast<uint64_t>(to)) *
                 64 +
             chunk));
  }
  static WeakMemory::Address flag(int owner, int region, int from, uint64_t chunk) {
    const uint64_t row =
        static_cast<uint64_t>(region) * nvlink::kMostRanks + static_cast<uint64_t>(from);
    return {kFlag, owner, static_cast<int64_t>(row * kMostDirectChunks + chunk)};
  }
  /// As DirectCall::slot(): a half is slots [region][source], as long as this call's are.
  WeakMemory::Address word(int owner, size_t call, int64_t epoch, int region, int from,
                           uint64_t chunk) const {
    const int64_t half = change_ == Change::kOneHalf ? 0 : epoch % 2;
    const uint64_t slot = static_cast<uint64_t>(region * size() + from);
    return {kData, owner, half, static_cast<int64_t>(slot * calls_[call].num_chunks + chunk)};
  }

  // ---- steps ----

  void send(const Block& b, int to, int region, uint64_t chunk) {
    const ModelStep tell = [=, this] {
      const int64_t e = epoch(b.rank, b.number);
      if (change_ == Change::kPlainFlags)
        memory_.store(b.writer, flag(to, region, b.rank, chunk), e);
      else
        memory_.release(b.writer, flag(to, region, b.rank, chunk), e);
      return true;
    };
    if (change_ == Change::kFlagBeforeData) b.steps->push_back(tell);
    b.steps->push_back([=, this] {
      memory_.store(b.writer, word(to, b.number, epoch(b.rank, b.number), region, b.rank, chunk),
                    text(b.number, region, b.rank, to, chunk));
      return true;
    });
    if (change_ != Change::kFlagBeforeData) b.steps->push_back(tell);
  }
  void await(const Block& b, int region, int from, uint64_t chunk) {
    b.steps->push_back([=, this] {
      const int64_t seen = memory_.load(flag(b.rank, region, from, chunk));
      const int64_t expected = epoch(b.rank, b.number);
      return change_ == Change::kExactEpochs ? seen == expected : seen >= expected;
    });
  }
  void take(const Block& b, int region, int from, uint64_t chunk) {
    const auto load = [=, this] {
      const auto place = word(b.rank, b.number, epoch(b.rank, b.number), region, from, chunk);
      if (memory_.load(place) != text(b.number, region, from, b.rank, chunk))
        error_ = "a chunk is not what was sent";
      return true;
    };
    if (change_ == Change::kLoadsBeforeFlag) b.steps->push_back(load);
    await(b, region, from, chunk);
    if (change_ != Change::kLoadsBeforeFlag) b.steps->push_back(load);
  }

  // ---- kinds of blocks; units are taken in turn ----

  template <typename Do>
  void each_unit(const Block& b, const Do& each) {
    for (uint64_t unit = b.index; unit < calls_[b.number].num_chunks; unit += b.count) each(unit);
  }
  void push(const Block& b) {
    const Call& call = calls_[b.number];
    if (call.way == Way::kBroadcast && b.rank != call.root) return;
    each_unit(b, [&](uint64_t chunk) {
      for (int turn = 1; turn < size(); ++turn) {
        const int to = (b.rank + turn) % size();
        if (change_ == Change::kForgetsAPeer && to == 0) continue;
        send(b, to, 0, chunk);
      }
    });
  }
  void turn(const Block& b) {
    const Call& call = calls_[b.number];
    const bool is_broadcast = call.way == Way::kBroadcast;
    if (call.way == Way::kGather || call.way == Way::kToAll) return;
    if (is_broadcast && b.rank == call.root) return;
    if (is_broadcast && b.index == 0 && change_ != Change::kNoGreeting)
      b.steps->push_back([=, this] {
        memory_.release(b.writer, flag(call.root, 1, b.rank, 0), epoch(b.rank, b.number));
        return true;
      });
    each_unit(b, [&](uint64_t chunk) {
      for (int from = 0; from < size(); ++from)
        if (from != b.rank && (!is_broadcast || from == call.root)) take(b, 0, from, chunk);
      for (int to = 0; to < size(); ++to)
        if (to != b.rank && (!is_broadcast || to != call.root)) send(b, to, 1, chunk);
    });
  }
  void copy(const Block& b) {
    const Call& call = calls_[b.number];
    const bool is_broadcast = call.way == Way::kBroadcast;
    if (is_broadcast && b.rank == call.root) {
      for (int from = 0; b.index == 0 && from < size(); ++from)
        if (from != b.rank && change_ != Change::kNoGreeting) await(b, 1, from, 0);
      return;
    }
    const int region = call.way == Way::kTwoShot || is_broadcast ? 1 : 0;
    each_unit(b, [&](uint64_t chunk) {
      for (int turn = 1; turn < size(); ++turn) {
        const int from = (b.rank - turn + size()) % size();
        if (!is_broadcast || from != call.root) take(b, region, from, chunk);
      }
    });
  }

  /// As end_call(): the last block ends the call.
  void end(const Block& b, uint64_t num_blocks) {
    b.steps->push_back([=, this] {
      Rank& rank = at(b.rank);
      const bool is_last = ++rank.blocks_done == num_blocks;
      if (is_last) rank.blocks_done = 0;
      if (is_last || change_ == Change::kEndsBeforeItsWork) rank.epoch = b.number + 1;
      return true;
    });
  }

  ModelKernel kernel(int rank, size_t number) {
    if (at(rank).epoch != number) error_ = "a call began before the one before had ended";
    ModelKernel made;
    made.resident = at(rank).resident;
    const uint64_t count = at(rank).blocks_of_kind;
    made.blocks.resize(3 * count);
    for (uint64_t i = 0; i < made.blocks.size(); ++i) {
      const uint64_t kind = change_ == Change::kCopiesFirst ? 2 - i / count : i / count;
      const Block block{
          rank, number, i % count, count, {rank, static_cast<int>(i), number}, &made.blocks[i]};
      if (kind == 0) push(block);
      if (kind == 1) turn(block);
      if (kind == 2) copy(block);
      end(block, made.blocks.size());
    }
    return made;
  }

  const std::vector<Call> calls_;
  const Change change_;
  std::vector<Rank> ranks_;
  WeakMemory memory_;
  std::string error_;
};

std::vector<Call> some_calls_of(int num_ranks, std::mt19937& random) {
  const bool are_broadcasts = random() % 3 == 0;
  const int last_root = static_cast<int>(random() % static_cast<unsigned>(num_ranks));
  std::vector<Call> calls;
  for (int i = 0; i < 6; ++i) {
    const Way way = are_broadcasts ? Way::kBroadcast : static_cast<Way>(random() % 4);
    const int root = random() % 3 != 0
                         ? last_root
                         : static_cast<int>(random() % static_cast<unsigned>(num_ranks));
    calls.push_back({way, root, 1 + random() % 3});
  }
  return calls;
}

// One thread: sanitizers find nothing more in the hundredth run.
constexpr unsigned kDirectRuns = kIsSanitized ? 60 : 600;

/// What went wrong in the first run in which something did.
std::string play_direct(Change change) {
  for (unsigned seed = 0; seed < kDirectRuns; ++seed) {
    std::mt19937 random(seed);
    const int num_ranks = 2 + static_cast<int>(seed % 2);
    DirectModel model(num_ranks, some_calls_of(num_ranks, random), change, random);
    const std::string error = model.run(random);
    if (!error.empty()) return error + ", seed " + std::to_string(seed);
  }
  return "";
}

TEST(DirectProtocol, LosesNothingAndNeverHangs) { EXPECT_EQ(play_direct(Change::kNone), ""); }

TEST(DirectProtocol, EveryStepIsNeeded) {
  const std::pair<Change, const char*> changes[] = {
      {Change::kOneHalf, "a chunk is overwritten that is being read"},
      {Change::kNoGreeting, "a root runs ahead of the others"},
      {Change::kFlagBeforeData, "a flag is told too early"},
      {Change::kPlainFlags, "a flag is seen too early"},
      {Change::kLoadsBeforeFlag, "a load passes the wait"},
      {Change::kExactEpochs, "a flag has gone on already"},
      {Change::kEpochsBeginAnew, "a flag says what an earlier call said"},
      {Change::kForgetsAPeer, "somebody waits for a peer that says nothing"},
      {Change::kCopiesFirst, "a copy waits where a push should run"},
      {Change::kEndsBeforeItsWork, "blocks of one call have other epochs"},
  };
  for (const auto& [change, what] : changes) EXPECT_NE(play_direct(change), "") << what;
}

}  // namespace
}  // namespace braid::coll
