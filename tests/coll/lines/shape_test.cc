// Launch shapes and area sizes of the kernels of lines. The kernels themselves need a GPU:
// tests/gpu/check.py, tests/gpu/torn.py.
#include <gtest/gtest.h>

#include <functional>

#include "coll/lines/lines.h"

namespace braid::coll {
namespace {

constexpr uint64_t kLineSizes[] = {0,       1,       480,     481,      100'000,
                                   200'001, 1 << 20, 3 << 20, 16 << 20, 16'000'007};
constexpr uint32_t kBlocks = 128;

void for_all_line_calls(const std::function<void(plan::Op, uint64_t, int)>& check) {
  for (int ranks = 2; ranks <= nvlink::kMostRanks; ++ranks)
    for (const uint64_t bytes : kLineSizes)
      for (const plan::Op op : plan::kAllOps) check(op, bytes, ranks);
}

TEST(LinesShape, EveryCallFitsTheAreaOfItsBytes) {
  for_all_line_calls([](plan::Op op, uint64_t bytes, int ranks) {
    const uint64_t message = bytes * (!plan::is_one_buffer(op) ? static_cast<uint64_t>(ranks) : 1);
    for (const uint64_t most : kLineSizes) {
      if (message > line_most_bytes(op, most, ranks)) continue;
      EXPECT_LE(line_call_bytes(op, bytes, ranks), line_area_bytes(most, ranks))
          << static_cast<int>(op) << " of " << bytes << " bytes, " << ranks << " ranks";
    }
  });
}

TEST(LinesShape, AnAreaHasRoomForWhatGoesByLinesAndNoMore) {
  EXPECT_LE(line_area_bytes(32 << 20, 2), 69U << 20);
  EXPECT_LE(line_area_bytes(32 << 20, 4), 36U << 20);
  EXPECT_LE(line_area_bytes(32 << 20, 8), 69U << 20);
}

// A line that lay across two lines of the memory would be written in two parts.
TEST(LinesShape, BothHalvesLieOnTheGridOfLines) {
  for_all_line_calls([](plan::Op op, uint64_t bytes, int ranks) {
    EXPECT_EQ(line_call_bytes(op, bytes, ranks) / 2 % kLineBytes, 0U);
    EXPECT_EQ(line_area_bytes(bytes, ranks) / 2 % kLineBytes, 0U);
  });
}

TEST(LinesShape, ASlotForEveryRankHoldsItsData) {
  for_all_line_calls([](plan::Op op, uint64_t bytes, int ranks) {
    if (op == plan::Op::kBroadcast) return;
    const bool is_two_shot = lines_shape(op, bytes, ranks, kBlocks).path == PacketPath::kTwoShot;
    const uint64_t sent = is_two_shot ? bytes : bytes * static_cast<uint64_t>(ranks);
    const uint64_t rows = line_call_bytes(op, bytes, ranks) / 2 / kRowBytes;
    EXPECT_GE(rows * kRowDataBytes, sent * (is_two_shot ? 2 : 1));
  });
}

TEST(LinesShape, ABroadcastHasRoomForGreetings) {
  const auto rows = [](uint64_t bytes, int ranks) {
    return line_call_bytes(plan::Op::kBroadcast, bytes, ranks) / 2 / kRowBytes;
  };
  EXPECT_EQ(rows(480, 2), 1U + 2);
  EXPECT_EQ(rows(481, 8), 2U + 8);
  // In slices of 1,000 rows: the root's, one of each rank's, and the greetings.
  EXPECT_EQ(rows(3000 * 480, 4), 1000U * (1 + 4) + 4);
}

TEST(LinesShape, BlocksGrowWithTheMessage) {
  for (const plan::Op op : plan::kAllOps) {
    EXPECT_EQ(lines_shape(op, 0, 8, kBlocks).num_blocks, 1U);
    EXPECT_EQ(lines_shape(op, 16 * 480, 8, kBlocks).num_blocks, 1U);
    EXPECT_EQ(lines_shape(op, 64 << 20, 8, kBlocks).num_blocks, kBlocks);
    EXPECT_EQ(lines_shape(op, 64 << 20, 8, 64).num_blocks, 64U);
    EXPECT_EQ(lines_shape(op, 1, 8, kBlocks).num_threads, kLineThreads);
  }
}

TEST(LinesShape, LeavesMultiprocessorsToOthers) {
  EXPECT_EQ(most_line_blocks(132), 128U);
  EXPECT_EQ(most_line_blocks(128), 64U);
  EXPECT_EQ(most_line_blocks(108), 64U);
}

TEST(LinesShape, LargeMessagesTakeTwoShots) {
  const auto path = [](plan::Op op, uint64_t bytes, int ranks) {
    return lines_shape(op, bytes, ranks, kBlocks).path;
  };
  EXPECT_EQ(path(plan::Op::kAllReduce, 64 << 10, 8), PacketPath::kOneShot);
  EXPECT_EQ(path(plan::Op::kAllReduce, 1 << 20, 8), PacketPath::kTwoShot);
  EXPECT_EQ(path(plan::Op::kAllReduce, 16 << 20, 2), PacketPath::kOneShot);
  EXPECT_EQ(path(plan::Op::kBroadcast, 64 << 10, 8), PacketPath::kCopy);
  EXPECT_EQ(path(plan::Op::kBroadcast, 1 << 20, 8), PacketPath::kTwoShot);
  EXPECT_EQ(path(plan::Op::kBroadcast, 16 << 20, 2), PacketPath::kCopy);
  EXPECT_EQ(path(plan::Op::kReduceScatter, 1, 8), PacketPath::kReduceScatter);
  EXPECT_EQ(path(plan::Op::kAllGather, 1 << 20, 8), PacketPath::kCopy);
}

}  // namespace
}  // namespace braid::coll
