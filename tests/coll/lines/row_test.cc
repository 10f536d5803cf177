#include "coll/lines/row.h"

#include <gtest/gtest.h>

#include <array>

namespace braid::coll::device {
namespace {

constexpr uint32_t kLanes = kRowBytes / 16;

TEST(Row, LanesHoldEveryByteOnce) {
  std::array<int, kRowDataBytes> held{};
  for (uint32_t lane = 0; lane < kLanes; ++lane)
    for (uint32_t b = 0; b < lane_data_bytes(lane); ++b) ++held.at(lane_data_at(lane) + b);
  for (size_t at = 0; at < held.size(); ++at) EXPECT_EQ(held[at], 1) << "byte " << at;
}

TEST(Row, EveryLineHasOneFlagInItsLastBytes) {
  for (uint32_t line = 0; line < kRowBytes / kLineBytes; ++line)
    for (uint32_t lane = 0; lane < kLineBytes / 16; ++lane)
      EXPECT_EQ(has_flag(8 * line + lane), lane == 7);
}

// Vectors of 16 bytes are loaded and stored as such: their data must lie on the same grid.
TEST(Row, DataLiesOnTheGridOfItsAccess) {
  for (uint32_t lane = 0; lane < kLanes; ++lane)
    EXPECT_EQ(lane_data_at(lane) % lane_data_bytes(lane), 0U) << "lane " << lane;
  EXPECT_EQ(kRowDataBytes % 16, 0U);
}

TEST(Row, EvenAnEmptyMessageHasARow) {
  EXPECT_EQ(num_rows(0), 1U);
  EXPECT_EQ(num_rows(1), 1U);
  EXPECT_EQ(num_rows(480), 1U);
  EXPECT_EQ(num_rows(481), 2U);
}

}  // namespace
}  // namespace braid::coll::device
