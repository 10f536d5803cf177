// The epoch log: whatever the order in which ranks come, and whenever changes are made, all read the
// same at the same call.
#include "comm/device/shares/epoch_log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>

#include "base/units.h"

namespace braid::comm {
namespace {

Status fine() { return {}; }

class Ranks {
 public:
  explicit Ranks(int size) {
    std::vector<EpochLog::Pages*> pages;
    for (int r = 0; r < size; ++r) {
      memory_.push_back(std::make_unique<EpochLog::Pages>());
      pages.push_back(memory_.back().get());
    }
    for (int r = 0; r < size; ++r) logs.push_back(EpochLog(r, pages));
  }
  uint32_t settle(int rank, uint64_t call) {
    const auto change =
        logs[static_cast<size_t>(rank)].settle(call, Deadline::after_ns(30_s), fine);
    EXPECT_TRUE(change.ok()) << change.status().to_string();
    return change.ok() ? change.value() : ~0U;
  }
  std::vector<EpochLog> logs;

 private:
  std::vector<std::unique_ptr<EpochLog::Pages>> memory_;
};

TEST(EpochLog, AChangeHoldsFromACallThatNobodyHasSettled) {
  Ranks ranks(3);
  for (uint64_t call = 1; call <= 5; ++call) EXPECT_EQ(ranks.settle(2, call), 0u);
  EXPECT_EQ(ranks.settle(0, 1), 0u);
  EXPECT_EQ(ranks.logs[0].propose(77, 2), 6u) << "rank 2 has settled call 5";
  EXPECT_EQ(ranks.logs[0].propose(78, 2), 7u) << "one change a call";
  for (int rank = 0; rank < 3; ++rank)
    for (uint64_t call = rank == 2 ? 6 : rank == 0 ? 2 : 1; call <= 9; ++call)
      EXPECT_EQ(ranks.settle(rank, call), call == 6   ? 77u
                                          : call == 7 ? 78u
                                                      : 0u)
          << "rank " << rank << " call " << call;
}

// Threads run apart as far as they like; rank 0 makes a change every now and then.
TEST(EpochLog, AllRanksReadTheSame) {
  constexpr int kSize = 4;
  constexpr uint64_t kCalls = 40 * EpochLog::kWords + 17;  // 6 had 70 changes on two busy cores
  Ranks ranks(kSize);
  std::vector<std::vector<uint32_t>> seen(kSize);
  std::vector<uint64_t> holds_from(1);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kSize; ++rank)
    threads.emplace_back([&, rank] {
      std::mt19937 random(static_cast<unsigned>(rank));
      auto& mine = seen[static_cast<size_t>(rank)];
      for (uint64_t call = 1; call <= kCalls; ++call) {
        if (random() % 64 == 0) std::this_thread::yield();
        if (rank == 0 && random() % 16 == 0) {
          const auto change = static_cast<uint32_t>(holds_from.size());
          const uint64_t from = ranks.logs[0].propose(change, call);
          if (from != 0) holds_from.push_back(from);
        }
        mine.push_back(ranks.settle(rank, call));
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (int rank = 1; rank < kSize; ++rank)
    EXPECT_EQ(seen[static_cast<size_t>(rank)], seen[0]) << "rank " << rank;
  ASSERT_GT(holds_from.size(), 100u);
  for (uint32_t change = 1; change < holds_from.size(); ++change) {
    EXPECT_GT(holds_from[change], holds_from[change - 1]);
    if (holds_from[change] > kCalls) continue;
    EXPECT_EQ(seen[0][holds_from[change] - 1], change);
  }
}

TEST(EpochLog, WhoIsTooFarAheadWaitsUntilItsDeadline) {
  Ranks ranks(2);
  for (uint64_t call = 1; call <= EpochLog::kWords; ++call) ranks.settle(1, call);
  const auto late =
      ranks.logs[1].settle(EpochLog::kWords + 1, Deadline::after_ns(20'000'000), fine);
  EXPECT_EQ(late.status().code(), Code::kTimeout) << late.status().to_string();
  EXPECT_NE(late.status().message().find("rank 1 is ahead"), std::string::npos);
  const auto broken = ranks.logs[1].settle(EpochLog::kWords + 1, Deadline::after_ns(30_s),
                                           [] { return peer_lost("rank 0 died"); });
  EXPECT_EQ(broken.status().code(), Code::kPeerLost);
  EXPECT_EQ(ranks.settle(0, 1), 0u);
  EXPECT_EQ(ranks.settle(1, EpochLog::kWords + 1), 0u) << "and goes on when the other has come";
}

// Rank 0 is behind all words there are: no change then, and no overwriting of one that rank 0 has
// still to read.
TEST(EpochLog, NoChangeWhereThereIsNoRoom) {
  Ranks ranks(2);
  for (uint64_t call = 1; call <= EpochLog::kWords; ++call) ranks.settle(1, call);
  EXPECT_EQ(ranks.logs[0].propose(5, 1), 0u);
  EXPECT_EQ(ranks.settle(0, 1), 0u);
  EXPECT_EQ(ranks.logs[0].propose(5, 2), EpochLog::kWords + 1);
  EXPECT_EQ(ranks.settle(1, EpochLog::kWords + 1), 5u);
  for (uint64_t call = 2; call <= EpochLog::kWords; ++call) EXPECT_EQ(ranks.settle(0, call), 0u);
  EXPECT_EQ(ranks.settle(0, EpochLog::kWords + 1), 5u);
}

}  // namespace
}  // namespace braid::comm
