// The host ring's protocol (host_ring.h) as a model: a sender and its readers go through transfers
// of a lane in random turns, over memory in which nothing but a release is in order. What is read
// must be what was sent, and somebody can always go on. With any of the protocol's steps left out
// or out of place the model must find what comes of it. It shares lane_begin() with the kernel; the
// arithmetic of slots is RingView's (ring_view.cuh), and the kernel itself needs a GPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rounding.h"
#include "support/weak_memory.h"
#include "transport/pcie/host_ring.h"

namespace braid::pcie {
namespace {

using test::ModelKernel;
using test::ModelStep;
using test::WeakMemory;

/// What is done otherwise than host_ring.cu does it.
enum class Change {
  kNone,
  // Right as well:
  kFreeWithoutOrder,  // as lanes by bulk copies do: what has been loaded cannot change
  // Wrong:
  kNoWaitForFree,
  kWaitsForOneFreeTooFew,
  kWaitsForOneReader,     // of several
  kNoFirstRound,          // waits for a slot that nobody had before
  kFullBeforeTheData,     // the release in front of the slot's stores
  kFullWithoutRelease,    // a plain store behind them
  kLoadsBeforeFull,       // no acquire: a load passes in front of the wait
  kFreeBeforeLoading,     // lets go of a slot and loads it then
  kNumbersBeginAnew,      // with every transfer, and counters do not
  kReaderCountsTransfers  // not slots
};

constexpr uint32_t kSlotBytes = 48;  // three words
constexpr uint64_t kWordBytes = 16;

struct Transfer {
  uint64_t bytes;
  int num_lanes;
};

class RingModel {
 public:
  /// Rank 0 sends, all others read; every rank has come as far as `first` slots of every lane.
  RingModel(int num_ranks, uint32_t num_slots, std::vector<Transfer> transfers, uint64_t first,
            Change change)
      : num_ranks_(num_ranks),
        num_slots_(num_slots),
        transfers_(std::move(transfers)),
        change_(change),
        progress_(static_cast<size_t>(num_ranks), std::vector<uint64_t>(kMostLanes, first)) {
    for (int lane = 0; lane < kMostLanes; ++lane) {
      const WeakMemory::Writer before{-1, 0, 0};
      memory_.store(before, {kFull, lane}, static_cast<int64_t>(first));
      for (int r = 1; r < num_ranks; ++r)
        memory_.store(before, {kFree, lane, r}, static_cast<int64_t>(first));
    }
  }

  std::string run(std::mt19937& random) {
    while (memory_.has_pending()) memory_.settle_one(random);
    const auto make = [&](int rank, size_t transfer) {
      ModelKernel kernel;
      const Transfer& what = transfers_[transfer];
      kernel.resident = static_cast<size_t>(what.num_lanes);  // all must be able to run
      for (int lane = 0; lane < what.num_lanes; ++lane)
        kernel.blocks.push_back(rank == 0 ? send(transfer, lane) : receive(rank, transfer, lane));
      return kernel;
    };
    return run_kernels(num_ranks_, transfers_.size(), memory_, random, error_, make);
  }

 private:
  enum Area : int64_t { kFull, kFree, kSlots };

  static int64_t text(size_t transfer, uint64_t at) {
    return static_cast<int64_t>(1 + (transfer << 32 | at));
  }
  WeakMemory::Address word(int lane, uint64_t number, uint64_t index) const {
    return {kSlots, lane, static_cast<int64_t>(number % num_slots_), static_cast<int64_t>(index)};
  }
  uint64_t begin_number(int rank, int lane) const {
    return change_ == Change::kNumbersBeginAnew
               ? 0
               : progress_[static_cast<size_t>(rank)][static_cast<size_t>(lane)];
  }

  /// As RingView::await_free().
  bool is_free(int lane, int reader, uint64_t number) const {
    if (change_ == Change::kNoWaitForFree) return true;
    if (change_ == Change::kWaitsForOneReader && reader > 1) return true;
    if (number < num_slots_ && change_ != Change::kNoFirstRound) return true;
    const uint64_t expected =
        number - num_slots_ + (change_ == Change::kWaitsForOneFreeTooFew ? 0 : 1);
    return static_cast<uint64_t>(memory_.load({kFree, lane, reader})) >= expected;
  }
  bool is_full(int lane, uint64_t number) const {
    return static_cast<uint64_t>(memory_.load({kFull, lane})) >= number + 1;
  }

  std::vector<ModelStep> send(size_t transfer, int lane) {
    std::vector<ModelStep> steps;
    const auto [bytes, num_lanes] = transfers_[transfer];
    const WeakMemory::Writer self{0, lane, transfer};
    uint64_t number = begin_number(0, lane);
    const uint64_t end = lane_begin(bytes, lane + 1, num_lanes);
    for (uint64_t at = lane_begin(bytes, lane, num_lanes); at < end; ++number) {
      const uint64_t length = std::min(uint64_t{kSlotBytes}, end - at);
      for (int reader = 1; reader < num_ranks_; ++reader)
        steps.push_back([=, this] { return is_free(lane, reader, number); });
      const ModelStep tell = [=, this] {
        const auto value = static_cast<int64_t>(number + 1);
        if (change_ == Change::kFullWithoutRelease)
          memory_.store(self, {kFull, lane}, value);
        else
          memory_.release(self, {kFull, lane}, value);
        return true;
      };
      if (change_ == Change::kFullBeforeTheData) steps.push_back(tell);
      for (uint64_t i = 0; i < divided_up(length, kWordBytes); ++i)
        steps.push_back([=, this] {
          memory_.store(self, word(lane, number, i), text(transfer, at + i * kWordBytes));
          return true;
        });
      if (change_ != Change::kFullBeforeTheData) steps.push_back(tell);
      at += length;
    }
    steps.push_back([=, this] {
      progress_[0][static_cast<size_t>(lane)] = number;
      return true;
    });
    return steps;
  }

  std::vector<ModelStep> receive(int rank, size_t transfer, int lane) {
    std::vector<ModelStep> steps;
    const auto [bytes, num_lanes] = transfers_[transfer];
    const WeakMemory::Writer self{rank, lane, transfer};
    uint64_t number = begin_number(rank, lane);
    const uint64_t first = number;
    const uint64_t end = lane_begin(bytes, lane + 1, num_lanes);
    for (uint64_t at = lane_begin(bytes, lane, num_lanes); at < end; ++number) {
      const uint64_t length = std::min(uint64_t{kSlotBytes}, end - at);
      const ModelStep wait = [=, this] { return is_full(lane, number); };
      const ModelStep let_go = [=, this] {
        const auto value = static_cast<int64_t>(
            change_ == Change::kReaderCountsTransfers ? first + 1 : number + 1);
        if (change_ == Change::kFreeWithoutOrder)
          memory_.store(self, {kFree, lane, rank}, value);
        else
          memory_.release(self, {kFree, lane, rank}, value);
        return true;
      };
      if (change_ != Change::kLoadsBeforeFull) steps.push_back(wait);
      if (change_ == Change::kFreeBeforeLoading) steps.push_back(let_go);
      for (uint64_t i = 0; i < divided_up(length, kWordBytes); ++i) {
        steps.push_back([=, this] {
          if (memory_.load(word(lane, number, i)) != text(transfer, at + i * kWordBytes))
            error_ = "a word is not what was sent";
          return true;
        });
        if (change_ == Change::kLoadsBeforeFull && i == 0) steps.push_back(wait);
      }
      if (change_ != Change::kFreeBeforeLoading) steps.push_back(let_go);
      at += length;
    }
    steps.push_back([=, this] {
      progress_[static_cast<size_t>(rank)][static_cast<size_t>(lane)] = number;
      return true;
    });
    return steps;
  }

  const int num_ranks_;
  const uint32_t num_slots_;
  const std::vector<Transfer> transfers_;
  const Change change_;
  std::vector<std::vector<uint64_t>> progress_;  // [rank][lane], as RingProgress
  WeakMemory memory_;
  std::string error_;
};

/// What went wrong in the first run in which something did.
std::string play(Change change) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const int num_ranks = 2 + static_cast<int>(seed % 2);
    const uint32_t num_slots = 1 + random() % 4;
    std::vector<Transfer> transfers;
    for (int i = 0; i < 4; ++i)
      transfers.push_back({random() % 400, 1 + static_cast<int>(random() % 3)});
    // A new comm's, or one's that has moved some terabytes.
    const uint64_t first = seed % 3 == 0 ? (uint64_t{1} << 32) - random() % 5 : 0;
    RingModel model(num_ranks, num_slots, transfers, first, change);
    const std::string error = model.run(random);
    if (!error.empty()) return error + ", seed " + std::to_string(seed);
  }
  return "";
}

TEST(HostRingProtocol, BringsEveryWordAndNeverHangs) { EXPECT_EQ(play(Change::kNone), ""); }

TEST(HostRingProtocol, FreeNeedsNoOrderBehindLoads) {
  EXPECT_EQ(play(Change::kFreeWithoutOrder), "");
}

TEST(HostRingProtocol, EveryStepIsNeeded) {
  const std::pair<Change, const char*> changes[] = {
      {Change::kNoWaitForFree, "a slot is written that a reader has not read"},
      {Change::kWaitsForOneFreeTooFew, "the same, by one"},
      {Change::kWaitsForOneReader, "another reader has not read it"},
      {Change::kNoFirstRound, "nobody lets go of a slot that was never full"},
      {Change::kFullBeforeTheData, "full is told too early"},
      {Change::kFullWithoutRelease, "full is seen too early"},
      {Change::kLoadsBeforeFull, "a load passes the wait"},
      {Change::kFreeBeforeLoading, "a slot is written while it is read"},
      {Change::kNumbersBeginAnew, "counters say what an earlier transfer said"},
      {Change::kReaderCountsTransfers, "free does not reach the slot that is waited for"},
  };
  for (const auto& [change, what] : changes) EXPECT_NE(play(change), "") << what;
}

}  // namespace
}  // namespace braid::pcie
