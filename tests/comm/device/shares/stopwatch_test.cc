#include "comm/device/shares/stopwatch.h"

#include <gtest/gtest.h>

#include "support/timed_cuda.h"

namespace braid::comm {
namespace {

class Stopwatches : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(cuda_.use_device(0).ok());
    user_ = cuda_.create_stream(sys::StreamPriority::kNormal).value();
    host_ = cuda_.create_stream(sys::StreamPriority::kHigh).value();
    here_ = cuda_.alloc(kBytes).value();
    ASSERT_TRUE(cuda_.use_device(1).ok());
    there_ = cuda_.alloc(kBytes).value();
    ASSERT_TRUE(cuda_.use_device(0).ok());
    watch_.emplace(Stopwatch::create(cuda_).value());
  }

  /// `copies` on the caller's stream, `host_copies` on the host's.
  void call(uint64_t number, int copies, int host_copies) {
    watch_->begin(number);
    mark(CallStage::kStart, user_);
    push(user_, copies);
    mark(CallStage::kBaseDone, user_);
    push(host_, host_copies);
    if (host_copies > 0) mark(CallStage::kBesideDone, host_);
    watch_->stop();
  }
  void push(sys::Stream stream, int copies) {
    for (int i = 0; i < copies; ++i)
      EXPECT_TRUE(cuda_.copy_on_device(there_, here_, kBytes, stream).ok());
  }
  void mark(CallStage stage, sys::Stream stream) { EXPECT_TRUE(watch_->mark(stage, stream).ok()); }
  std::optional<Stopwatch::Reading> take() {
    auto reading = watch_->take();
    EXPECT_TRUE(reading.ok()) << reading.status().to_string();
    return reading.ok() ? reading.value() : std::nullopt;
  }

  static constexpr uint64_t kBytes = 38'500;  // 100 ns
  test::TimedCuda cuda_{2};
  sys::Stream user_, host_;
  sys::DevicePtr here_ = 0, there_ = 0;
  std::optional<Stopwatch> watch_;
};

TEST_F(Stopwatches, TellsWhenEachPartWasDone) {
  call(5, 3, 4);
  const auto reading = take();
  ASSERT_TRUE(reading.has_value());
  EXPECT_EQ(reading->number, 5u);
  EXPECT_EQ(reading->times.base_ns, 300);
  EXPECT_EQ(reading->times.beside_ns, 400);
  EXPECT_FALSE(take().has_value());
}

TEST_F(Stopwatches, APartThatWasNotThereIsZero) {
  call(6, 2, 0);
  EXPECT_EQ(take()->times.beside_ns, 0);
}

TEST_F(Stopwatches, TheFirstSegmentCounts) {
  watch_->begin(1);
  for (int segment = 0; segment < 3; ++segment) {
    mark(CallStage::kStart, user_);
    push(user_, 1 + segment);
    mark(CallStage::kBaseDone, user_);
  }
  watch_->stop();
  EXPECT_EQ(take()->times.base_ns, 100);
}

TEST_F(Stopwatches, NobodyWaitsForAnEvent) {
  cuda_.set_lateness(2);
  call(1, 1, 1);
  EXPECT_FALSE(take().has_value());
  EXPECT_FALSE(take().has_value());
  while (!take().has_value()) {
  }
}

// With all events under way a sample is left out, and those begun before it stay whole.
TEST_F(Stopwatches, MoreThanThereAreEventsForAreLeftOut) {
  cuda_.set_lateness(1);
  for (uint64_t number = 1; number <= Stopwatch::kMostPending + 3; ++number)
    call(number, static_cast<int>(number), 0);
  std::vector<uint64_t> numbers;
  for (int look = 0; look < 40; ++look)
    if (const auto reading = take()) {
      EXPECT_EQ(reading->times.base_ns, 100 * static_cast<int64_t>(reading->number));
      numbers.push_back(reading->number);
    }
  EXPECT_EQ(numbers, (std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST_F(Stopwatches, ACallThatFailedOnItsWayIsNoSample) {
  watch_->begin(1);
  mark(CallStage::kStart, user_);
  call(2, 1, 0);
  EXPECT_EQ(take()->number, 2u);
  EXPECT_FALSE(take().has_value());
}

TEST_F(Stopwatches, WithoutASampleNothingIsRecorded) {
  mark(CallStage::kStart, user_);
  mark(CallStage::kBaseDone, user_);
  EXPECT_EQ(cuda_.num_timed(), 0u);
}

}  // namespace
}  // namespace braid::comm
