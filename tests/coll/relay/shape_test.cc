// How a relayed message is cut: every byte has one row and one owner, and every row one lane.
#include <gtest/gtest.h>

#include <vector>

#include "coll/relay/relay.h"

namespace braid::coll {
namespace {

TEST(RelayShape, UnitsCoverTheMessageOnce) {
  constexpr uint64_t kUnit = kRelayUnitBytes;
  for (const uint32_t num_others : {2U, 3U, 7U, 15U})
    for (const uint64_t bytes :
         {uint64_t{1}, kUnit - 1, kUnit, kUnit + 1, 3 * kUnit, 64 * kUnit + 5}) {
      const RelayShape shape{bytes, num_others, 8};
      uint64_t next = 0;
      for (uint32_t row = 0; row < shape.num_rows(); ++row)
        for (uint32_t other = 0; other < num_others; ++other) {
          const uint32_t length = shape.bytes_of(row, other);
          if (length == 0) continue;
          ASSERT_EQ(shape.begin_of(row, other), next) << bytes;
          ASSERT_LE(length, kUnit);
          next += length;
        }
      EXPECT_EQ(next, bytes);
      EXPECT_EQ(shape.bytes_of(shape.num_rows(), 0), 0U);
    }
}

TEST(RelayShape, LanesTakeEveryRowOnce) {
  for (const uint32_t num_lanes : {4U, 8U, 256U})
    for (const uint64_t rows : {1, 3, 4, 5, 255, 256, 257, 1000}) {
      const RelayShape shape{rows * 3 * kRelayUnitBytes, 3, num_lanes};
      ASSERT_EQ(shape.num_rows(), rows);
      std::vector<int> taken(rows);
      for (uint32_t lane = 0; lane < num_lanes; ++lane)
        for (uint32_t i = 0; i < shape.rows_of(lane); ++i) ++taken.at(lane + i * num_lanes);
      EXPECT_EQ(taken, std::vector<int>(rows, 1)) << num_lanes << " lanes";
    }
}

// Flags hold rows of a lane in 32 bits, and a rank's flags are for kMostRelayLanes.
TEST(RelayShape, BlocksFitTheFlags) {
  for (const int num_ranks : {3, 4, 8, 16})
    for (uint64_t bytes = 1; bytes <= uint64_t{1} << 36; bytes *= 4) {
      const uint32_t blocks = relay_blocks(bytes, num_ranks);
      EXPECT_GE(blocks, 1U);
      EXPECT_LE(blocks * kBulkMovers, kMostRelayLanes);
      const RelayShape shape{bytes, static_cast<uint32_t>(num_ranks - 1), blocks * kBulkMovers};
      EXPECT_GT(shape.rows_of(0), 0U) << bytes;
    }
}

}  // namespace
}  // namespace braid::coll
