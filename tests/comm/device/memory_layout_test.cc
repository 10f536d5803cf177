// Areas follow each other without gaps or overlaps, at places that vectors can be written to.
#include "comm/device/memory_layout.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace braid::comm {
namespace {

TEST(MemoryLayout, AreasFollowEachOther) {
  const MemoryLayout layout(kArenaScratchAt, {512_MiB,
                                              {{"packets", 1_MiB, 1_MiB},
                                               {"lines", 2_MiB + 1, 2_MiB + 1},
                                               {"none"},
                                               {"direct", 32_MiB, 4_KiB}}});
  ASSERT_EQ(layout.areas().size(), 3U);
  EXPECT_EQ(layout.scratch_at(), kArenaScratchAt);
  EXPECT_EQ(layout.areas()[0].begin, kArenaScratchAt + 512_MiB);
  EXPECT_EQ(layout.areas()[1].begin, layout.areas()[0].begin + 1_MiB);
  EXPECT_EQ(layout.areas()[2].begin, layout.areas()[1].begin + 2_MiB + MemoryLayout::kAlignment);
  EXPECT_EQ(layout.areas()[2].area.name, "direct");
  EXPECT_GE(layout.bytes(), layout.areas()[2].begin + 32_MiB);
  EXPECT_LT(layout.bytes(), layout.areas()[2].begin + 32_MiB + kLargePageBytes);
  EXPECT_EQ(layout.bytes() % kLargePageBytes, 0U);
}

TEST(MemoryLayout, WhatIsNotThereTakesNothing) {
  const MemoryLayout layout(kArenaScratchAt, {16_MiB, {{"packets"}}});
  EXPECT_TRUE(layout.areas().empty());
  EXPECT_EQ(layout.bytes(), kArenaScratchAt + 16_MiB);
}

TEST(MemoryLayout, ARoomBeginsWithItsScratch) {
  const MemoryLayout layout(0, {4_MiB, {{"direct", 1_MiB, 4_KiB}}});
  EXPECT_EQ(layout.scratch_at(), 0U);
  EXPECT_EQ(layout.areas()[0].begin, 4_MiB);
}

}  // namespace
}  // namespace braid::comm
