// The doorbell: a rung sleeper wakes at once, a ring between look and sleep is not lost, and
// ringing nobody is harmless.
#include "transport/host/doorbell.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/thread_group.h"

namespace braid::transport {
namespace {

constexpr int64_t kLongNs = 9'000'000;  // a sleep that nobody ends lasts 10 ms

void run_bells(int size, const std::function<void(Doorbell&, group::Group&)>& body) {
  test::run_thread_ranks(size, [&](group::Group& group) {
    auto doorbell = Doorbell::connect(group, test::test_deadline());
    ASSERT_TRUE(doorbell.ok()) << doorbell.status().to_string();
    body(**doorbell, group);
    ASSERT_TRUE(group.barrier("close", test::test_deadline()).ok());
  });
}

int64_t sleep_ns(Doorbell& doorbell, int64_t until_ns) {
  const int64_t begin = now_ns();
  doorbell.sleep(until_ns);
  return now_ns() - begin;
}

TEST(DoorbellTest, RingBetweenArmAndSleepIsNotLost) {
  run_bells(1, [](Doorbell& doorbell, group::Group&) {
    int num_long = 0;
    for (int i = 0; i < 20; ++i) {
      doorbell.arm();
      doorbell.ring(0);  // a rank may ring itself: the same line, the same order
      num_long += sleep_ns(doorbell, INT64_MAX) >= kLongNs;
    }
    EXPECT_LT(num_long, 10) << "a lost ring costs a whole sleep each time";
  });
}

TEST(DoorbellTest, SleepEndsAtItsTime) {
  run_bells(1, [](Doorbell& doorbell, group::Group&) {
    doorbell.arm();
    EXPECT_GE(sleep_ns(doorbell, now_ns() + 2'000'000), 1'900'000);
    doorbell.arm();
    EXPECT_GE(sleep_ns(doorbell, INT64_MAX), kLongNs) << "bounded by 10 ms, not shorter";
    doorbell.arm();
    EXPECT_LT(sleep_ns(doorbell, now_ns() - 1), kLongNs) << "a time that has passed does not sleep";
  });
}

TEST(DoorbellTest, RingBeforeArmDoesNotEndTheNextSleep) {
  run_bells(1, [](Doorbell& doorbell, group::Group&) {
    doorbell.ring(0);
    doorbell.arm();
    doorbell.disarm();
    doorbell.ring(0);
    doorbell.arm();
    EXPECT_GE(sleep_ns(doorbell, now_ns() + 3'000'000), 2'900'000);
  });
}

// Ball between two ranks; each waits as comm does: arm, look once more, sleep.
TEST(DoorbellTest, TwoRanksWakeEachOther) {
  constexpr int kRounds = 300;
  std::atomic<int> ball{0};
  std::atomic<int> num_long{0};
  run_bells(2, [&](Doorbell& doorbell, group::Group& group) {
    for (int turn = group.rank(); turn < 2 * kRounds; turn += 2) {
      while (ball.load(std::memory_order_acquire) != turn) {
        doorbell.arm();
        if (ball.load(std::memory_order_acquire) == turn)
          doorbell.disarm();
        else
          num_long += sleep_ns(doorbell, INT64_MAX) >= kLongNs;
      }
      ball.store(turn + 1, std::memory_order_release);
      doorbell.ring(1 - group.rank());
    }
  });
  EXPECT_EQ(ball, 2 * kRounds);
  EXPECT_LT(num_long, kRounds / 2) << "most sleeps must end by a ring";
}

TEST(DoorbellTest, RanksOfOtherHostsHaveNoBell) {
  test::run_thread_ranks(2, [](group::Group& group) {
    auto doorbell =
        Doorbell::connect(group, test::test_deadline(), group.rank() == 0 ? "left" : "right");
    ASSERT_TRUE(doorbell.ok()) << doorbell.status().to_string();
    (*doorbell)->ring(1 - group.rank());
    ASSERT_TRUE(group.barrier("close", test::test_deadline()).ok());
  });
}

}  // namespace
}  // namespace braid::transport
