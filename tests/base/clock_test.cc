#include "base/clock.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace braid {
namespace {

TEST(Clock, NeverRunsBackwards) {
  int64_t last = now_ns();
  for (int i = 0; i < 10'000; ++i) {
    const int64_t now = now_ns();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(Deadline, InThePastHasPassedAndHasNothingLeft) {
  EXPECT_TRUE(Deadline::after_ns(0).passed());
  EXPECT_TRUE(Deadline::after_ns(-1_s).passed());
  EXPECT_EQ(Deadline::after_ns(-1_s).left_ns(), 0);
}

TEST(Deadline, AheadHasTimeLeft) {
  const Deadline deadline = Deadline::after_ns(60_s);
  EXPECT_FALSE(deadline.passed());
  EXPECT_GT(deadline.left_ns(), 50_s);
  EXPECT_LE(deadline.left_ns(), 60_s);
}

TEST(Deadline, AtATimeKeepsIt) { EXPECT_EQ(Deadline::at_ns(12345).at_ns(), 12345); }

}  // namespace
}  // namespace braid
