#include "comm/device/host_share.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace braid::comm {
namespace {

TEST(HostShare, GrowsFromShortToLongWithTheInverseOfTheBytes) {
  const HostShare share{32_MiB, 128_MiB, 0, 0.06};
  EXPECT_DOUBLE_EQ(share.at(0), 0);
  EXPECT_DOUBLE_EQ(share.at(32_MiB), 0);
  EXPECT_DOUBLE_EQ(share.at(64_MiB), 0.04);  // two thirds of the way from 1/32 to 1/128
  EXPECT_DOUBLE_EQ(share.at(128_MiB), 0.06);
  EXPECT_DOUBLE_EQ(share.at(1_GiB), 0.06);
}

TEST(HostShare, OneForAll) {
  const HostShare none, all{0, 0, 0.3, 0.3};
  for (const uint64_t bytes : {0ul, 1ul, 64_MiB, 8_GiB}) {
    EXPECT_DOUBLE_EQ(none.at(bytes), 0);
    EXPECT_DOUBLE_EQ(all.at(bytes), 0.3);
  }
}

}  // namespace
}  // namespace braid::comm
