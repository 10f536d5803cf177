#include "base/check.h"

#include <gtest/gtest.h>

namespace braid {
namespace {

TEST(Check, PassesSilentlyAndEvaluatesOnce) {
  int calls = 0;
  const auto count = [&calls] { return ++calls; };
  BRAID_CHECK(count() == 1, "called {} times", calls);
  EXPECT_EQ(calls, 1);
}

TEST(CheckDeathTest, ShowsPlaceExpressionAndValues) {
  const int slots = 3;
  EXPECT_DEATH(BRAID_CHECK(slots == 4, "slots {}, expected {}", slots, 4),
               "check_test.cc:[0-9]+: check failed: slots == 4: slots 3, expected 4");
}

}  // namespace
}  // namespace braid
