// Launch shapes and area sizes of the packet kernels. The kernels themselves need a GPU:
// tests/device/packets_check.cu.
#include <gtest/gtest.h>

#include "coll/packets/packets.h"

namespace braid::coll {
namespace {

constexpr uint64_t kPacketSizes[] = {0, 1, 8, 1000, 8192, 65'536, 200'001, 1 << 20};

TEST(PacketsShape, EveryCallFitsTheAreaOfItsBytes) {
  for (int ranks = 2; ranks <= nvlink::kMostRanks; ++ranks)
    for (const uint64_t most : kPacketSizes)
      for (const uint64_t bytes : kPacketSizes)
        for (const plan::Op op : plan::kAllOps) {
          if (bytes * (!plan::is_one_buffer(op) ? static_cast<uint64_t>(ranks) : 1) > most)
            continue;
          EXPECT_LE(packet_call_bytes(op, bytes, ranks), packet_area_bytes(most, ranks))
              << static_cast<int>(op) << " of " << bytes << " bytes, " << ranks << " ranks";
        }
}

TEST(PacketsShape, BlocksGrowWithTheMessage) {
  for (const plan::Op op : plan::kAllOps) {
    EXPECT_EQ(packets_shape(op, 0, 8).num_blocks, 1U);
    EXPECT_EQ(packets_shape(op, 1024, 8).num_blocks, 1U);
    EXPECT_EQ(packets_shape(op, 4 << 20, 8).num_blocks, kMostPacketBlocks);
    EXPECT_EQ(packets_shape(op, 4 << 20, 8).num_threads, kPacketThreads);
  }
}

TEST(PacketsShape, LargeAllReducesTakeTwoShots) {
  const auto path = [](uint64_t bytes, int ranks) {
    return packets_shape(plan::Op::kAllReduce, bytes, ranks).path;
  };
  EXPECT_EQ(path(8 << 10, 8), PacketPath::kOneShot);
  EXPECT_EQ(path(1 << 20, 8), PacketPath::kTwoShot);
  EXPECT_EQ(path(1 << 20, 2), PacketPath::kOneShot);  // as many bytes, one trip less
  EXPECT_EQ(packets_shape(plan::Op::kReduceScatter, 1, 8).path, PacketPath::kReduceScatter);
  EXPECT_EQ(packets_shape(plan::Op::kBroadcast, 1, 8).path, PacketPath::kCopy);
}

TEST(PacketsShape, HalvesLieOnTheGridOfPackets) {
  for (int ranks = 2; ranks <= nvlink::kMostRanks; ++ranks)
    for (const uint64_t most : kPacketSizes) EXPECT_EQ(packet_area_bytes(most, ranks) % 32, 0U);
}

}  // namespace
}  // namespace braid::coll
