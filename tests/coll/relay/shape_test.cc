// How a relayed message is cut: every byte has one row and one owner, and every row a flag.
#include <gtest/gtest.h>

#include "coll/relay/relay.h"

namespace braid::coll {
namespace {

TEST(RelayShape, UnitsCoverTheMessageOnce) {
  for (const uint32_t unit_bytes : {kLeastRelayUnitBytes, 3 * kBulkTileBytes})
    for (const uint32_t num_others : {2U, 3U, 7U, 15U})
      for (const uint64_t bytes : {uint64_t{1}, uint64_t{unit_bytes} - 1, uint64_t{unit_bytes},
                                   uint64_t{unit_bytes} + 1, uint64_t{64} * unit_bytes + 5}) {
        const RelayShape shape{bytes, num_others, unit_bytes};
        uint64_t next = 0;
        for (uint32_t row = 0; row < shape.num_rows(); ++row)
          for (uint32_t other = 0; other < num_others; ++other) {
            const uint32_t length = shape.bytes_of(row, other);
            if (length == 0) continue;
            ASSERT_EQ(shape.begin_of(row, other), next) << bytes;
            ASSERT_LE(length, unit_bytes);
            next += length;
          }
        EXPECT_EQ(next, bytes);
        EXPECT_EQ(shape.bytes_of(shape.num_rows(), 0), 0U);
      }
}

TEST(RelayShape, EveryRowHasAFlagAndEveryUnitWholeTiles) {
  for (const int num_ranks : {3, 4, 8, 16})
    for (uint64_t bytes = 1; bytes <= uint64_t{1} << 36; bytes = bytes * 4 + 1) {
      const RelayShape shape = relay_shape(bytes, num_ranks);
      EXPECT_GE(shape.num_rows(), 1U);
      EXPECT_LE(shape.num_rows(), kMostRelayRows) << bytes;
      EXPECT_GE(shape.unit_bytes, kLeastRelayUnitBytes);
      EXPECT_EQ(shape.unit_bytes % kBulkTileBytes, 0U);
      EXPECT_GE(relay_blocks(shape), 1U);
      EXPECT_LE(relay_blocks(shape), kMostRelayBlocks);
    }
}

TEST(RelayShape, UnitsGrowOnlyWhereFlagsRunOut) {
  EXPECT_EQ(relay_shape(1, 4).unit_bytes, kLeastRelayUnitBytes);
  EXPECT_EQ(relay_shape(256 << 20, 4).unit_bytes, kLeastRelayUnitBytes);
  EXPECT_EQ(relay_shape(uint64_t{8} << 30, 4).unit_bytes, 22 * kBulkTileBytes);
  EXPECT_EQ(relay_blocks(relay_shape(1, 4)), 1U);
  EXPECT_EQ(relay_blocks(relay_shape(256 << 20, 4)), kMostRelayBlocks);
}

}  // namespace
}  // namespace braid::coll
