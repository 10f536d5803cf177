#include "comm/device/shares/share_table.h"

#include <gtest/gtest.h>

#include "base/units.h"
#include "comm/device/shares/share_change.h"

namespace braid::comm {
namespace {

using plan::Op;

uint32_t parts(double share) { return static_cast<uint32_t>(share * plan::kWhole + 0.5); }

TEST(ShareTable, IsAsTunedUntilSomethingIsDecided) {
  ShareTable table;
  EXPECT_EQ(table.parts(Op::kAllGather, 128_MiB), 0u);
  EXPECT_FALSE(table.can_move(share_key(Op::kAllGather, 128_MiB)));
  table.set_tuned(Op::kAllGather, {32_MiB, 128_MiB, 0.02, 0.08});
  EXPECT_EQ(table.parts(Op::kAllGather, 32_MiB), parts(0.02));
  EXPECT_EQ(table.parts(Op::kAllGather, 64_MiB), parts(0.06));
  EXPECT_EQ(table.parts(Op::kAllGather, 1_GiB), parts(0.08));
  EXPECT_EQ(table.parts(Op::kAllReduce, 128_MiB), 0u);
  EXPECT_TRUE(table.can_move(share_key(Op::kAllGather, 128_MiB)));
  EXPECT_TRUE(table.moved().empty());
}

// A class has one decided share, that of its largest message; smaller ones differ as when tuned.
TEST(ShareTable, AMoveIsOfOneOperationAndSizeClass) {
  ShareTable table;
  table.set_tuned(Op::kAllGather, {32_MiB, 128_MiB, 0.02, 0.08});
  table.set_tuned(Op::kAllToAll, {0, 0, 0.05, 0.05});
  const ShareKey key = share_key(Op::kAllGather, 100_MiB);
  const uint32_t smaller = table.parts(Op::kAllGather, 96_MiB);
  table.move(key, parts(0.05));
  EXPECT_EQ(table.class_parts(key), parts(0.05));
  EXPECT_EQ(table.parts(Op::kAllGather, 128_MiB), parts(0.05));
  EXPECT_EQ(table.parts(Op::kAllGather, 96_MiB), smaller - (parts(0.08) - parts(0.05)));
  EXPECT_EQ(table.parts(Op::kAllGather, 64_MiB), parts(0.06)) << "another class";
  EXPECT_EQ(table.parts(Op::kAllToAll, 128_MiB), parts(0.05));
  table.move(key, 0);
  EXPECT_EQ(table.parts(Op::kAllGather, 96_MiB), 0u);
  EXPECT_TRUE(table.can_move(key)) << "it may come back";
  table.move(key, parts(0.01));
  EXPECT_EQ(table.parts(Op::kAllGather, 65_MiB), 0u) << "never below 0";
  ASSERT_EQ(table.moved().size(), 1u);
  EXPECT_EQ(table.moved()[0].moves, 3u);
  EXPECT_EQ(table.moved()[0].tuned, parts(0.08));
  table.set_tuned(Op::kAllGather, {0, 0, 0.03, 0.03});
  EXPECT_EQ(table.parts(Op::kAllGather, 128_MiB), parts(0.03));
  EXPECT_TRUE(table.moved().empty());
}

TEST(ShareTable, WhatIsForcedIsNotMoved) {
  ShareTable table;
  table.set_tuned(Op::kBroadcast, {0, 0, 0.08, 0.08});
  const ShareKey key = share_key(Op::kBroadcast, 64_MiB);
  table.move(key, parts(0.04));
  table.force(Op::kBroadcast, 0.5);
  EXPECT_EQ(table.parts(Op::kBroadcast, 64_MiB), plan::kWhole / 2);
  EXPECT_FALSE(table.can_move(key));
  table.set_trial(key, parts(0.01));
  EXPECT_EQ(table.parts(Op::kBroadcast, 64_MiB), plan::kWhole / 2);
  table.set_trial(std::nullopt);
  table.force(Op::kBroadcast, std::nullopt);
  EXPECT_EQ(table.parts(Op::kBroadcast, 64_MiB), parts(0.04));
}

TEST(ShareTable, ATrialIsOfOneKeyUntilItIsOver) {
  ShareTable table;
  table.set_tuned(Op::kAllGather, {0, 0, 0.08, 0.08});
  const ShareKey key = share_key(Op::kAllGather, 64_MiB);
  table.set_trial(key, parts(0.01));
  EXPECT_EQ(table.parts(Op::kAllGather, 64_MiB), parts(0.01));
  EXPECT_EQ(table.class_parts(key), parts(0.08));
  EXPECT_EQ(table.parts(Op::kAllGather, 32_MiB), parts(0.08));
  EXPECT_EQ(table.parts(Op::kAllToAll, 64_MiB), 0u);
  table.set_trial(std::nullopt);
  EXPECT_EQ(table.parts(Op::kAllGather, 64_MiB), parts(0.08));
}

TEST(ShareChanges, SurviveTheEpochLog) {
  EXPECT_FALSE(unpack(0).has_value());
  for (const Op op : plan::kAllOps)
    for (const int size_class : {0, 22, 64})
      for (const uint32_t share : {0U, 1U, 655U, plan::kWhole})
        for (const bool is_trial : {false, true}) {
          const ShareChange change{{op, size_class}, share, is_trial};
          EXPECT_EQ(unpack(pack(change)), change);
        }
}

}  // namespace
}  // namespace braid::comm
