// Which kernel moves a ring's flows: by the GPU, by what the user asks for, and by the addresses.
#include "comm/device/links/ring_engine.h"

#include <gtest/gtest.h>

#include "coll/ranks.h"

namespace braid::comm {
namespace {

sys::DeviceFacts gpu_of(int compute_major, int shared_bytes = 227 << 10) {
  sys::DeviceFacts gpu;
  gpu.compute_major = compute_major;
  gpu.max_shared_bytes_per_block = shared_bytes;
  return gpu;
}

RingEngine chosen(const std::string& wish, const sys::DeviceFacts& gpu) {
  return choose_ring_engine(test::make_config({{"BRAID_GPU_RING", wish}}), gpu).value();
}

TEST(RingEngine, BulkWhereTheGpuHasIt) {
  EXPECT_TRUE(chosen("auto", gpu_of(9)).has_bulk);
  EXPECT_TRUE(chosen("auto", gpu_of(10)).has_bulk);
  EXPECT_TRUE(chosen("bulk", gpu_of(9)).has_bulk);
  EXPECT_FALSE(chosen("threads", gpu_of(9)).has_bulk);
  EXPECT_FALSE(chosen("auto", gpu_of(8, 163 << 10)).has_bulk);  // has the room, lacks the copies
  EXPECT_FALSE(chosen("auto", gpu_of(9, pcie::kBulkSharedBytes - 1)).has_bulk);
  EXPECT_TRUE(chosen("auto", gpu_of(9, pcie::kBulkSharedBytes)).has_bulk);
}

TEST(RingEngine, AskedForWhereItCannotBe) {
  const auto engine =
      choose_ring_engine(test::make_config({{"BRAID_GPU_RING", "bulk"}}), gpu_of(8));
  EXPECT_EQ(engine.status().code(), Code::kInvalidArgument);
  EXPECT_NE(engine.status().message().find("8.0"), std::string::npos) << engine.status().message();
}

// Once a tile had two storers in turn, and with slots of 32 tiles two ranks waited for ever.
TEST(RingEngine, SlotsMayHaveAnyNumberOfTiles) {
  for (const char* slot : {"128", "4KiB", "20KiB", "64KiB", "256KiB", "16MiB"}) {
    const auto engine = choose_ring_engine(
        test::make_config({{"BRAID_GPU_SLOT", slot}, {"BRAID_GPU_RING", "bulk"}}), gpu_of(9));
    EXPECT_TRUE(engine.ok() && engine.value().has_bulk) << slot;
  }
}

// All flows of a call together keep to as many blocks: an all_gather has one out and one in per
// peer, an all_to_all one of each per peer, a broadcast one.
TEST(RingEngine, LanesShareTheBlocks) {
  const RingEngine bulk = chosen("auto", gpu_of(9)), threads = chosen("threads", gpu_of(9));
  for (int num_flows = 1; num_flows <= pcie::kMostFlows; ++num_flows) {
    EXPECT_GE(bulk.lanes_of(num_flows), 1);
    EXPECT_LE(bulk.lanes_of(num_flows), threads.lanes_of(num_flows));
    EXPECT_LE(threads.lanes_of(num_flows), pcie::kMostLanes);
    EXPECT_LE(bulk.lanes_of(num_flows) * num_flows, std::max(num_flows, 8));
  }
  EXPECT_EQ(bulk.lanes_of(2), 3);  // what two GPUs' PCIe takes beside NVLink
  EXPECT_EQ(bulk.lanes_of(1), bulk.lanes_of(2));
  EXPECT_EQ(bulk.lanes_of(0), bulk.lanes_of(1));  // of a call that sends nothing
  const auto asked = choose_ring_engine(test::make_config({{"BRAID_GPU_LANES", "3"}}), gpu_of(9));
  EXPECT_EQ(asked.value().lanes_of(1), 3);
  EXPECT_EQ(asked.value().lanes_of(14), 3);
}

pcie::Flows flows_at(uint64_t source, uint64_t destination) {
  pcie::Flows flows{};
  flows.num_flows = 2;
  flows.flow[0] = {0, 1, reinterpret_cast<const std::byte*>(source), nullptr, 7};
  flows.flow[1] = {1, 0, nullptr, reinterpret_cast<std::byte*>(destination), 7};
  flows.flow[2] = {1, 0, nullptr, reinterpret_cast<std::byte*>(uint64_t{1}), 7};  // not one of them
  return flows;
}

pcie::Flows flows_of(int num_sent, int num_received, int num_lanes) {
  pcie::Flows flows{};
  for (int i = 0; i < num_sent + num_received; ++i)
    flows.flow[flows.num_flows++].source =
        i < num_sent ? reinterpret_cast<const std::byte*>(uint64_t{16}) : nullptr;
  flows.num_lanes = num_lanes;
  return flows;
}

pcie::HostRing ring_of(uint32_t num_slots, uint32_t slot_bytes) {
  pcie::HostRing ring{};
  ring.num_slots = num_slots;
  ring.slot_bytes = slot_bytes;
  return ring;
}

// A sender whose tiles under way reached over all slots of its ring waited for a reader that waited
// to be told of them.
TEST(RingEngine, ASlotOfTheRingIsLeftToTheReader) {
  const RingEngine engine = chosen("auto", gpu_of(9));
  for (const uint32_t slot_bytes : {16U, 4096U, 5000U, 8192U, 65536U})
    for (const uint32_t num_slots : {1U, 2U, 3U, 4U, 8U}) {
      const uint32_t open = engine.open_tiles_of(ring_of(num_slots, slot_bytes), flows_of(1, 3, 1));
      const uint32_t tiles = (slot_bytes + pcie::kTileBytes - 1) / pcie::kTileBytes;
      EXPECT_GE(open, 1U);
      EXPECT_LT((open - 1 + tiles - 1) / tiles, num_slots) << slot_bytes << " x " << num_slots;
    }
}

// However many lanes send, PCIe has about as much to take.
TEST(RingEngine, LanesThatSendShareTheWindow) {
  const RingEngine engine = chosen("auto", gpu_of(9));
  const pcie::HostRing ring = ring_of(8, 64 << 10);
  EXPECT_EQ(engine.open_tiles_of(ring, flows_of(1, 1, 3)), 2U);
  EXPECT_EQ(engine.open_tiles_of(ring, flows_of(1, 7, 1)), 8U);
  EXPECT_EQ(engine.open_tiles_of(ring, flows_of(7, 7, 1)), 1U);
  EXPECT_EQ(engine.open_tiles_of(ring, flows_of(0, 1, 3)), 8U);  // sends nothing
  const auto asked =
      choose_ring_engine(test::make_config({{"BRAID_GPU_HOST_WINDOW", "1"}}), gpu_of(9));
  EXPECT_EQ(asked.value().open_tiles_of(ring, flows_of(1, 1, 3)), 1U);
}

TEST(RingEngine, BulkCopiesMoveWholeVectors) {
  EXPECT_TRUE(are_whole_vectors(flows_at(4096, 16)));
  EXPECT_FALSE(are_whole_vectors(flows_at(4096 + 8, 16)));
  EXPECT_FALSE(are_whole_vectors(flows_at(4096, 17)));
  EXPECT_TRUE(are_whole_vectors(pcie::Flows{}));
}

}  // namespace
}  // namespace braid::comm
