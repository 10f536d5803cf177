#include "comm/device/call_clock.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "base/clock.h"
#include "support/timed_cuda.h"
#include "sys/cuda/owned.h"

namespace braid::comm {
namespace {

using Told = std::tuple<uint64_t, int64_t, int64_t>;

class CallClockTest : public testing::Test {
 protected:
  static constexpr uint64_t kBytes = 385'000;  // 1 us at TimedCuda's rate

  void SetUp() override {
    ASSERT_TRUE(cuda_.use_device(0).ok());
    from_ = sys::own<sys::DeviceMemory>(cuda_, cuda_.alloc(kBytes)).value();
    stream_ = sys::own<sys::OwnedStream>(cuda_, cuda_.create_stream(sys::StreamPriority::kNormal))
                  .value();
    ASSERT_TRUE(cuda_.use_device(1).ok());
    to_ = sys::own<sys::DeviceMemory>(cuda_, cuda_.alloc(kBytes)).value();
    ASSERT_TRUE(cuda_.use_device(0).ok());
    began_ns_ = now_ns();
    clock_.emplace(CallClock::create(cuda_, stream_.get()).value());
    made_ns_ = now_ns();
  }
  void run_for_us(int us) {
    for (int i = 0; i < us; ++i)
      ASSERT_TRUE(cuda_.copy_on_device(to_.get(), from_.get(), kBytes, stream_.get()).ok());
  }
  void call(uint64_t number, int us) {
    ASSERT_TRUE(clock_->begin(number, stream_.get()).ok());
    run_for_us(us);
    ASSERT_TRUE(clock_->end(stream_.get()).ok());
  }
  std::vector<Told> settle() {
    std::vector<Told> told;
    const Status status = clock_->settle([&](uint64_t number, int64_t begin, int64_t end) {
      told.emplace_back(number, begin, end);
    });
    EXPECT_TRUE(status.ok()) << status.to_string();
    return told;
  }

  test::TimedCuda cuda_{2};
  sys::DeviceMemory from_, to_;
  sys::OwnedStream stream_;
  int64_t began_ns_ = 0, made_ns_ = 0;
  std::optional<CallClock> clock_;
};

TEST_F(CallClockTest, TellsBeginsAndEndsOnTheHostsClock) {
  run_for_us(7);
  call(1, 20);
  run_for_us(3);
  call(2, 30);
  const auto told = settle();
  ASSERT_EQ(told.size(), 4u);
  const auto [first, first_begin, first_none] = told[0];
  EXPECT_EQ(first, 1u);
  EXPECT_EQ(first_none, 0);
  EXPECT_GE(first_begin, began_ns_ + 7'000);
  EXPECT_LE(first_begin, made_ns_ + 7'001);
  const int64_t first_end = std::get<2>(told[1]);
  EXPECT_NEAR(static_cast<double>(first_end - first_begin), 20'000, 2);
  EXPECT_NEAR(static_cast<double>(std::get<1>(told[2]) - first_end), 3'000, 2);
  EXPECT_NEAR(static_cast<double>(std::get<2>(told[3]) - std::get<1>(told[3])), 30'000, 2);
  EXPECT_FALSE(clock_->is_pending());
  EXPECT_TRUE(settle().empty());
}

TEST_F(CallClockTest, WaitsForNoEvent) {
  cuda_.set_lateness(1);
  call(5, 10);
  EXPECT_TRUE(clock_->is_pending());
  EXPECT_TRUE(settle().empty());  // its begin is denied once,
  const auto begun = settle();    // then its end
  ASSERT_EQ(begun.size(), 1u);
  EXPECT_EQ(std::get<2>(begun[0]), 0);
  const auto ended = settle();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(std::get<0>(ended[0]), 5u);
  EXPECT_EQ(std::get<1>(ended[0]), std::get<1>(begun[0]));
  EXPECT_GT(std::get<2>(ended[0]), 0);
}

TEST_F(CallClockTest, ACallThatIsUnderWayHasNoEnd) {
  ASSERT_TRUE(clock_->begin(1, stream_.get()).ok());
  EXPECT_EQ(settle().size(), 1u);  // begun
  EXPECT_TRUE(settle().empty());
  ASSERT_TRUE(clock_->end(stream_.get()).ok());
  EXPECT_EQ(settle().size(), 1u);
}

TEST_F(CallClockTest, ACallThatFailedOnItsWayIsForgotten) {
  ASSERT_TRUE(clock_->begin(1, stream_.get()).ok());
  call(2, 1);
  const auto told = settle();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(std::get<0>(told[0]), 2u);
}

// Far from the event that is known on both clocks a float of milliseconds is coarse: later ends
// take its place, and nothing is lost on the way.
TEST_F(CallClockTest, GoesOnForHours) {
  cuda_.set_nvlink_gbps(0, static_cast<double>(kBytes) / 1.8e12);  // a copy takes half an hour
  int64_t last_end = made_ns_;
  for (uint64_t number = 1; number <= 6; ++number) {
    call(number, 1);
    const auto told = settle();
    ASSERT_EQ(told.size(), 2u);
    EXPECT_NEAR(static_cast<double>(std::get<2>(told[1]) - std::get<1>(told[1])), 1.8e12, 1e3);
    EXPECT_GE(std::get<1>(told[1]), last_end - 1'000'000'000);
    last_end = std::get<2>(told[1]);
  }
}

TEST_F(CallClockTest, BoundsWhatIsUnderWay) {
  cuda_.set_lateness(1'000'000);
  for (uint64_t number = 1; number <= CallClock::kMostPending + 5; ++number) call(number, 0);
  EXPECT_EQ(cuda_.num_timed(), 1 + 2 * CallClock::kMostPending);
  EXPECT_TRUE(settle().empty());
}

}  // namespace
}  // namespace braid::comm
