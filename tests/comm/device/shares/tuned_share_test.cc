#include "comm/device/shares/tuned_share.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace braid::comm {
namespace {

TEST(TunedShare, GrowsFromShortToLongWithTheInverseOfTheBytes) {
  const TunedShare share{32_MiB, 128_MiB, 0, 0.06};
  EXPECT_DOUBLE_EQ(share.at(0), 0);
  EXPECT_DOUBLE_EQ(share.at(32_MiB), 0);
  EXPECT_DOUBLE_EQ(share.at(64_MiB), 0.04);  // two thirds of the way from 1/32 to 1/128
  EXPECT_DOUBLE_EQ(share.at(128_MiB), 0.06);
  EXPECT_DOUBLE_EQ(share.at(1_GiB), 0.06);
}

TEST(TunedShare, OneForAll) {
  const TunedShare none, all{0, 0, 0.3, 0.3};
  for (const uint64_t bytes : {0ul, 1ul, 64_MiB, 8_GiB}) {
    EXPECT_DOUBLE_EQ(none.at(bytes), 0);
    EXPECT_DOUBLE_EQ(all.at(bytes), 0.3);
  }
}

// What stage 2 counted was cut in another order than the call: more than it carried, where what the
// link can carry bound it and a part of that was used.
TEST(TunedShare, ThePartOfABlockIsBoundBeforeItIsUsed) {
  constexpr uint32_t kQuarter = plan::kWhole / 4;
  EXPECT_EQ(part_bytes(64_MiB, kQuarter, 64_MiB, 1), 16_MiB);
  EXPECT_EQ(part_bytes(64_MiB, kQuarter, 8_MiB, 1), 8_MiB);
  EXPECT_EQ(part_bytes(64_MiB, kQuarter, 8_MiB, 0.5), 4_MiB);
  EXPECT_EQ(part_bytes(64_MiB + 1000, kQuarter, 64_MiB, 1) % kCutUnit, 0U);
  EXPECT_EQ(part_bytes(1000, kQuarter, 64_MiB, 1), 0U);
}

}  // namespace
}  // namespace braid::comm
