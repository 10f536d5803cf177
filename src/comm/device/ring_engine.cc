#include "comm/device/ring_engine.h"

#include <algorithm>

namespace braid::comm {

namespace {

// Blocks of all flows together, of 132 multiprocessors, whatever the number of peers.
constexpr int kThreadBlocks = 16;
constexpr int kBulkBlocks = 8;
// A broadcast has one flow, and half of the blocks: with all of them the host link added nothing to
// NVLink, with three 7 % (2 H200).
constexpr int kLeastFlows = 2;

bool has_bulk_copies(const sys::DeviceFacts& gpu) {
  constexpr int kFirstMajor = 9;
  return gpu.compute_major >= kFirstMajor &&
         gpu.max_shared_bytes_per_block >= static_cast<int>(pcie::kBulkSharedBytes);
}

// Storers take slots in turn: a tile must be the same one's in every round, or it would take one
// use of the tile for another (bulk_lane.cuh).
bool fits_tiles(uint64_t slot_bytes) {
  const uint64_t tiles = (slot_bytes + pcie::kTileBytes - 1) / pcie::kTileBytes;
  return tiles > 0 && pcie::kTiles % (pcie::kStorers * tiles) == 0;
}

bool is_vector(const std::byte* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

}  // namespace

int RingEngine::lanes_of(int num_flows) const {
  if (asked_lanes != 0) return asked_lanes;
  return std::clamp(num_blocks / std::max(num_flows, kLeastFlows), 1, pcie::kMostLanes);
}

Result<RingEngine> choose_ring_engine(const Config& config, const sys::DeviceFacts& gpu) {
  const uint64_t slot_bytes = config.bytes("BRAID_GPU_SLOT");
  const std::string& wanted = config.text("BRAID_GPU_RING");
  if (wanted != "auto" && wanted != "threads" && wanted != "bulk")
    return invalid_argument("BRAID_GPU_RING: asked for auto, threads or bulk, found '{}'", wanted);
  if (wanted == "bulk" && !has_bulk_copies(gpu))
    return invalid_argument("BRAID_GPU_RING: bulk copies need compute capability 9.0, found {}.{}",
                            gpu.compute_major, gpu.compute_minor);
  if (wanted == "bulk" && !fits_tiles(slot_bytes))
    return invalid_argument(
        "BRAID_GPU_RING: bulk copies need slots of 1, 2, 4 or 8 tiles of {} bytes; BRAID_GPU_SLOT "
        "is {} bytes",
        pcie::kTileBytes, slot_bytes);
  RingEngine engine;
  engine.has_bulk = wanted != "threads" && has_bulk_copies(gpu) && fits_tiles(slot_bytes);
  engine.num_blocks = engine.has_bulk ? kBulkBlocks : kThreadBlocks;
  engine.asked_lanes = static_cast<int>(config.integer("BRAID_GPU_LANES"));
  if (engine.asked_lanes < 0 || engine.asked_lanes > pcie::kMostLanes)
    return invalid_argument("BRAID_GPU_LANES: asked for 0 to {}, found {}", pcie::kMostLanes,
                            engine.asked_lanes);
  return engine;
}

bool are_whole_vectors(const pcie::Flows& flows) {
  return std::all_of(flows.flow, flows.flow + flows.num_flows, [](const pcie::Flow& flow) {
    return is_vector(flow.source != nullptr ? flow.source : flow.destination);
  });
}

}  // namespace braid::comm
