// Areas follow each other without gaps or overlaps, and all that kernels count begins as zeros.
#include "comm/device/memory_layout.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace braid::comm {
namespace {

TEST(ArenaLayout, AreasFollowEachOther) {
  const ArenaLayout layout{512_MiB, {1_MiB, 2_MiB, 32_MiB, 4_KiB, 64_KiB}};
  EXPECT_EQ(layout.packets_at(), ArenaLayout::kScratchAt + 512_MiB);
  EXPECT_EQ(layout.lines_at(), layout.packets_at() + 1_MiB);
  EXPECT_EQ(layout.relay_at(), layout.lines_at() + 2_MiB);
  EXPECT_EQ(layout.direct_at(), layout.relay_at() + 64_KiB);
  EXPECT_EQ(layout.zeros_end(), layout.direct_at() + 4_KiB);
  EXPECT_GE(layout.bytes(), layout.direct_at() + 32_MiB);
  EXPECT_LT(layout.bytes(), layout.direct_at() + 32_MiB + ArenaLayout::kPageBytes);
  EXPECT_EQ(layout.bytes() % ArenaLayout::kPageBytes, 0U);
}

TEST(ArenaLayout, WhatIsNotThereTakesNothing) {
  const ArenaLayout layout{16_MiB, {}};
  EXPECT_EQ(layout.direct_at(), layout.packets_at());
  EXPECT_EQ(layout.bytes(), ArenaLayout::kScratchAt + 16_MiB);
}

}  // namespace
}  // namespace braid::comm
