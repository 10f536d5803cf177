// Launch shapes and area sizes of the direct kernels. The kernels themselves need a GPU:
// tests/gpu/check.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "coll/direct/direct.h"

namespace braid::coll {
namespace {

constexpr uint64_t kDirectSizes[] = {0,       1,       17,       1000,       65'536,
                                     200'001, 1 << 20, 16 << 20, 300'000'007};

void for_all(const std::function<void(plan::Op, uint64_t, int)>& check) {
  for (int ranks = 2; ranks <= nvlink::kMostRanks; ++ranks)
    for (const uint64_t bytes : kDirectSizes)
      for (const plan::Op op : plan::kAllOps) check(op, bytes, ranks);
}

TEST(DirectShape, EveryCallFitsTheAreaOfItsBytes) {
  for_all([](plan::Op op, uint64_t bytes, int ranks) {
    const uint64_t message = bytes * (!plan::is_one_buffer(op) ? static_cast<uint64_t>(ranks) : 1);
    for (const uint64_t most : kDirectSizes) {
      if (message > direct_most_bytes(op, most, ranks)) continue;
      EXPECT_LE(direct_call_bytes(op, bytes, ranks), direct_area_bytes(most, ranks))
          << static_cast<int>(op) << " of " << bytes << " bytes, " << ranks << " ranks";
    }
  });
}

TEST(DirectShape, SlotsOfAHalfFitIntoIt) {
  for_all([](plan::Op op, uint64_t bytes, int ranks) {
    const DirectShape shape = direct_shape(op, bytes, ranks, true);
    const uint64_t regions = shape.path == PacketPath::kTwoShot ? 2 : 1;
    EXPECT_LE(regions * static_cast<uint64_t>(ranks) * shape.slot_bytes,
              direct_half_bytes(direct_call_bytes(op, bytes, ranks)));
    EXPECT_EQ(direct_half_bytes(direct_area_bytes(bytes, ranks)) % 256, 0U);
  });
}

TEST(DirectShape, ChunksCoverTheSlotAndHaveFlags) {
  for_all([](plan::Op op, uint64_t bytes, int ranks) {
    const DirectShape shape = direct_shape(op, bytes, ranks, true);
    EXPECT_EQ(shape.slot_bytes % 128, 0U);  // whole lines of NVLink
    EXPECT_EQ(shape.chunk_bytes % 16, 0U);
    EXPECT_GE(shape.num_chunks, 1U);
    EXPECT_LE(shape.num_chunks, kMostDirectChunks);
    EXPECT_GE(shape.num_chunks * shape.chunk_bytes, shape.slot_bytes);
    EXPECT_LT((shape.num_chunks - 1) * shape.chunk_bytes, std::max<uint64_t>(shape.slot_bytes, 1));
  });
}

TEST(DirectShape, SlicesCoverTheMessage) {
  for_all([](plan::Op op, uint64_t bytes, int ranks) {
    const DirectShape shape = direct_shape(op, bytes, ranks, true);
    const int owners = op == plan::Op::kBroadcast           ? ranks - 1
                       : shape.path == PacketPath::kTwoShot ? ranks
                                                            : 1;
    EXPECT_GE(static_cast<uint64_t>(owners) * shape.slot_bytes, bytes);
  });
}

TEST(DirectShape, EveryKindOfWorkHasABlock) {
  for (const bool in_bulk : {false, true})
    for_all([in_bulk](plan::Op op, uint64_t bytes, int ranks) {
      const DirectShape shape = direct_shape(op, bytes, ranks, in_bulk);
      EXPECT_GE(shape.push_blocks, 1U);
      EXPECT_EQ(shape.turn_blocks > 0, shape.path != PacketPath::kCopy);
      EXPECT_EQ(shape.copy_blocks > 0,
                shape.path == PacketPath::kCopy || shape.path == PacketPath::kTwoShot);
      if (op == plan::Op::kBroadcast) return;
      EXPECT_LE(shape.num_blocks(), kMostDirectBlocks);
    });
  EXPECT_EQ(direct_shape(plan::Op::kAllReduce, 16 << 20, 8, false).num_blocks(), kMostDirectBlocks);
  EXPECT_EQ(direct_shape(plan::Op::kAllGather, 1, 2, true).num_blocks(), 2U);
}

TEST(DirectShape, ABroadcastHasTheBlocksOfItsRankAlone) {
  for (int ranks = 2; ranks <= nvlink::kMostRanks; ++ranks) {
    const DirectShape both = direct_shape(plan::Op::kBroadcast, 16 << 20, ranks, true);
    const DirectShape root = for_root(both, true), other = for_root(both, false);
    EXPECT_EQ(root.num_blocks(), both.push_blocks + 1);
    EXPECT_EQ(root.copy_blocks, 1U);  // who is greeted
    EXPECT_EQ(other.num_blocks(), both.turn_blocks + both.copy_blocks);
    EXPECT_LE(root.num_blocks(), kMostDirectBlocks);
    EXPECT_LE(other.num_blocks(), kMostPassingBlocks);
    EXPECT_EQ(root.chunk_bytes, other.chunk_bytes);
  }
}

// Ranks that share a GPU: 132 multiprocessors, a block on each.
TEST(DirectShape, BlocksOfAllRanksFindAPlaceOnOneGpu) {
  for_all([](plan::Op op, uint64_t bytes, int ranks) {
    const DirectShape whole = direct_shape(op, bytes, ranks, false);
    const DirectShape fewer = with_fewer_blocks(whole, static_cast<uint32_t>(132 / ranks));
    EXPECT_LE(fewer.num_blocks() * static_cast<uint32_t>(ranks), 132U);
    EXPECT_EQ(fewer.push_blocks > 0, whole.push_blocks > 0);
    EXPECT_EQ(fewer.turn_blocks > 0, whole.turn_blocks > 0);
    EXPECT_EQ(fewer.copy_blocks > 0, whole.copy_blocks > 0);
    EXPECT_EQ(fewer.chunk_bytes, whole.chunk_bytes);
  });
}

TEST(DirectShape, HowPushesGoChangesNothingButBlocks) {
  for_all([](plan::Op op, uint64_t bytes, int ranks) {
    const DirectShape bulk = direct_shape(op, bytes, ranks, true);
    const DirectShape plain = direct_shape(op, bytes, ranks, false);
    EXPECT_EQ(bulk.path, plain.path);
    EXPECT_EQ(bulk.slot_bytes, plain.slot_bytes);
    EXPECT_EQ(bulk.chunk_bytes, plain.chunk_bytes);
    EXPECT_EQ(bulk.num_chunks, plain.num_chunks);
  });
}

TEST(DirectShape, ChunksGrowWithTheMessage) {
  const auto chunk = [](plan::Op op, uint64_t bytes, int ranks) {
    return direct_shape(op, bytes, ranks, true).chunk_bytes;
  };
  EXPECT_EQ(chunk(plan::Op::kAllReduce, 8 << 20, 4), 16U << 10);
  EXPECT_EQ(chunk(plan::Op::kAllReduce, 16 << 20, 4), 32U << 10);
  EXPECT_EQ(chunk(plan::Op::kReduceScatter, 4 << 20, 4), 32U << 10);
  EXPECT_EQ(chunk(plan::Op::kAllReduce, 64 << 20, 4), 32U << 10);
  EXPECT_EQ(chunk(plan::Op::kAllReduce, 1 << 20, 2), 16U << 10);
  EXPECT_EQ(chunk(plan::Op::kAllReduce, 16 << 20, 2), 32U << 10);
  EXPECT_EQ(chunk(plan::Op::kAllGather, 4 << 20, 4), 32U << 10);
  EXPECT_EQ(chunk(plan::Op::kBroadcast, 16 << 20, 4), 16U << 10);
  EXPECT_EQ(chunk(plan::Op::kBroadcast, 32 << 20, 4), 32U << 10);
  EXPECT_EQ(chunk(plan::Op::kBroadcast, 32 << 20, 8), 16U << 10);
}

TEST(DirectPieces, EachFitsTheAreaAndTogetherTheyAreTheMessage) {
  for_all([](plan::Op op, uint64_t bytes, int ranks) {
    for (const uint64_t limit : {uint64_t{1} << 20, uint64_t{32} << 20}) {
      const uint64_t area = direct_area_bytes(limit, ranks);
      const uint64_t pieces = direct_pieces(op, bytes, area, ranks);
      if (pieces == 0) continue;
      const uint64_t piece = direct_piece_bytes(bytes, pieces);
      EXPECT_LE(direct_call_bytes(op, piece, ranks), area) << bytes << ", " << ranks << " ranks";
      EXPECT_EQ(piece % 256, 0U);
      EXPECT_GE(pieces * piece, bytes);
      EXPECT_LT((pieces - 1) * piece, bytes);
    }
  });
}

TEST(DirectPieces, AsManyAsAreFasterThanCopyEngines) {
  const auto pieces = [](plan::Op op, uint64_t mib, int ranks) {
    return direct_pieces(op, mib << 20, direct_area_bytes(32 << 20, ranks), ranks);
  };
  EXPECT_EQ(pieces(plan::Op::kAllGather, 42, 4), 1U);  // MiB of a rank's block
  EXPECT_EQ(pieces(plan::Op::kAllGather, 64, 4), 2U);
  EXPECT_EQ(pieces(plan::Op::kAllGather, 86, 4), 0U);
  EXPECT_EQ(pieces(plan::Op::kAllGather, 64, 2), 1U);
  EXPECT_EQ(pieces(plan::Op::kAllGather, 65, 2), 0U);
  EXPECT_EQ(pieces(plan::Op::kAllGather, 32, 8), 2U);
  EXPECT_EQ(pieces(plan::Op::kAllToAll, 64, 4), 2U);
  EXPECT_EQ(pieces(plan::Op::kAllReduce, 128, 4), 2U);  // of the buffer
  EXPECT_EQ(pieces(plan::Op::kAllReduce, 171, 4), 0U);
  EXPECT_EQ(pieces(plan::Op::kAllReduce, 64, 2), 1U);
  EXPECT_EQ(pieces(plan::Op::kAllReduce, 128, 2), 0U);
  EXPECT_EQ(pieces(plan::Op::kAllReduce, 129, 2), 0U);
  EXPECT_EQ(pieces(plan::Op::kReduceScatter, 33, 4), 0U);
  EXPECT_EQ(pieces(plan::Op::kBroadcast, 64, 4), 1U);
  EXPECT_EQ(pieces(plan::Op::kBroadcast, 65, 4), 2U);
  EXPECT_EQ(pieces(plan::Op::kBroadcast, 1024, 4), 16U);
  EXPECT_EQ(pieces(plan::Op::kBroadcast, 256, 8), 4U);
  EXPECT_EQ(pieces(plan::Op::kBroadcast, 65, 2), 0U);
  EXPECT_EQ(direct_pieces(plan::Op::kBroadcast, 256 << 20, direct_area_bytes(8 << 20, 4), 4), 16U);
  EXPECT_EQ(direct_pieces(plan::Op::kBroadcast, 256 << 20, direct_area_bytes(4 << 20, 4), 4), 0U);
  EXPECT_EQ(direct_pieces(plan::Op::kAllGather, 1, 0, 4), 0U);  // no area
}

// Calls that last leave multiprocessors to the user.
TEST(DirectShape, FewBlocksCopyOutOfLargeSlots) {
  const auto shape = [](uint64_t mib, int ranks, bool in_bulk) {
    return direct_shape(plan::Op::kAllGather, mib << 20, ranks, in_bulk);
  };
  EXPECT_EQ(shape(16, 4, true).copies_in_bulk, 0U);
  EXPECT_EQ(shape(16, 4, true).copy_blocks, 48U);
  EXPECT_EQ(shape(32, 4, true).copies_in_bulk, 1U);
  EXPECT_EQ(shape(32, 4, true).num_blocks(), 24U);
  EXPECT_EQ(shape(32, 2, true).copies_in_bulk, 0U);
  EXPECT_EQ(shape(32, 4, false).copies_in_bulk, 0U);  // has no rings
  EXPECT_EQ(direct_shape(plan::Op::kAllReduce, 1 << 20, 4, true).copies_in_bulk, 1U);
}

}  // namespace
}  // namespace braid::coll
