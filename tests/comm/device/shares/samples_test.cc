#include "comm/device/shares/samples.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

namespace braid::comm {
namespace {

class SampleRings : public testing::Test {
 protected:
  SampleRings() {
    for (auto& memory : memory_) pages_.push_back(&memory);
    for (int r = 0; r < 3; ++r) ranks_.push_back(Samples(r, pages_));
  }
  Samples::Pages memory_[3] = {};
  std::vector<Samples::Pages*> pages_;
  std::vector<Samples> ranks_;
};

TEST_F(SampleRings, TheLatestOfAllCountsOnceAllAreThere) {
  ranks_[0].publish(1, {500, 300});
  ranks_[2].publish(1, {400, 900});
  EXPECT_FALSE(ranks_[0].of_all(1).has_value());
  ranks_[1].publish(1, {600, 0});
  const auto all = ranks_[0].of_all(1);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->base_ns, 600);
  EXPECT_EQ(all->beside_ns, 900);
  EXPECT_EQ(ranks_[1].of(2, 1)->beside_ns, 900);
  EXPECT_FALSE(ranks_[0].of(0, 2).has_value()) << "not made yet";
}

TEST_F(SampleRings, OldOnesAreGone) {
  for (uint64_t number = 1; number <= Samples::kKept + 1; ++number)
    ranks_[1].publish(number, {static_cast<int64_t>(number), 7});
  EXPECT_FALSE(ranks_[0].of(1, 1).has_value());
  EXPECT_EQ(ranks_[0].of(1, 2)->base_ns, 2);
  EXPECT_EQ(ranks_[0].of(1, Samples::kKept + 1)->base_ns, Samples::kKept + 1);
}

// One rank writes on and on into the place that another one reads: what is read belongs together.
TEST_F(SampleRings, NoSampleIsHalfOfTwo) {
  constexpr int64_t kRounds = 2'000'000;
  std::atomic<int64_t> written{1};
  const auto number_of = [](int64_t round) {
    return static_cast<uint64_t>(round) * Samples::kKept;
  };
  std::thread writer([&] {
    for (int64_t round = 1; round <= kRounds; ++round) {
      ranks_[1].publish(number_of(round), {round, -round});
      written.store(round, std::memory_order_relaxed);
    }
  });
  uint64_t found = 0;
  for (int64_t round = 0; round < kRounds;) {
    round = written.load(std::memory_order_relaxed);
    const auto times = ranks_[0].of(1, number_of(round));
    if (!times) continue;
    ++found;
    EXPECT_EQ(times->base_ns, round);
    EXPECT_EQ(times->beside_ns, -round);
    if (HasFailure()) break;
  }
  writer.join();
  EXPECT_GT(found, 0u);
}

}  // namespace
}  // namespace braid::comm
