#include "comm/observe/tally.h"

#include <gtest/gtest.h>

#include "support/observed.h"

namespace braid::comm {
namespace {

CallNote took(int64_t ns) {
  CallNote note = test::host_note(plan::Op::kAllToAll, 1);
  note.state = CallState::kCompleted;
  note.begin_ns = 1;
  note.end_ns = 1 + ns;
  return note;
}

TEST(Tally, BoundsIncludeTheirUpperEnd) {
  Tally tally;
  for (const int64_t ns : {10'000, 10'001, 20'000}) tally.add_time(took(ns));
  tally.add_time(took(10'000'000'000));
  tally.add_time(took(10'000'000'001));  // above all bounds: only counted
  const KindTally& of = tally.kinds[0][static_cast<size_t>(plan::Op::kAllToAll)];
  EXPECT_EQ(of.within[0], 1u);
  EXPECT_EQ(of.within[1], 2u);
  EXPECT_EQ(of.within.back(), 1u);
  EXPECT_EQ(of.timed, 5u);
  EXPECT_EQ(of.time_ns, 20'000'040'002);
}

TEST(Tally, BarriersAreAKindOfTheirOwn) {
  Tally tally;
  CallNote barrier;
  barrier.shape.op = plan::Op::kBroadcast;
  barrier.shape.is_barrier = true;
  tally.add_call(barrier);
  tally.add_call(test::gpu_note(plan::Op::kBroadcast, 16));
  EXPECT_EQ(tally.kinds[0][plan::kNumOps].calls, 1u);
  EXPECT_EQ(tally.kinds[0][static_cast<size_t>(plan::Op::kBroadcast)].calls, 0u);
  EXPECT_EQ(tally.kinds[1][static_cast<size_t>(plan::Op::kBroadcast)].bytes, 64u);
  EXPECT_STREQ(Tally::kind_name(plan::kNumOps), "barrier");
  EXPECT_STREQ(Tally::kind_name(0), "all_gather");
}

}  // namespace
}  // namespace braid::comm
