#include "bindings/nccl/core/group_watchdog.h"

#include <gtest/gtest.h>

#include "support/alone.h"
#include "support/thread_group.h"

namespace braid::nccl {
namespace {

class GroupWatchdogOfRanks : public testing::Test {
 protected:
  test::ThreadGroup group_{std::make_shared<test::ThreadHub>(1), 0};
};

TEST_F(GroupWatchdogOfRanks, BreaksOffWhatDoesNotEnd) {
  const auto watchdog = GroupWatchdog::begin(group_, Deadline::after_ns(1'000'000));
  ASSERT_TRUE(watchdog.ok());
  const Deadline patience = Deadline::after_ns(10'000'000'000);
  while (!group_.broken() && !patience.passed()) std::this_thread::yield();
  EXPECT_EQ(group_.fate().code(), Code::kUnavailable);
}

TEST_F(GroupWatchdogOfRanks, IsOverWhenItEnds) {
  ASSERT_TRUE(GroupWatchdog::begin(group_, Deadline::after_ns(60'000'000'000)).ok());
  EXPECT_FALSE(group_.broken());
}

// A throw would go past the vote for which the other ranks wait.
TEST_F(GroupWatchdogOfRanks, DISABLED_WithoutThreads) {
  test::forbid_threads();
  const auto watchdog = GroupWatchdog::begin(group_, Deadline::after_ns(1'000'000));
  EXPECT_EQ(watchdog.status().code(), Code::kExhausted) << watchdog.status().to_string();
  test::end_alone();
}

TEST_F(GroupWatchdogOfRanks, SaysThatThereIsNoThread) {
  test::run_alone("GroupWatchdogOfRanks.DISABLED_WithoutThreads");
}

}  // namespace
}  // namespace braid::nccl
