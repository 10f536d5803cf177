#include "comm/device/links/ring_engine.h"

#include <algorithm>

#include "base/rounding.h"

namespace braid::comm {

namespace {

// Blocks of all flows together, of 132 multiprocessors, whatever the number of peers.
constexpr int kThreadBlocks = 16;
constexpr int kBulkBlocks = 6;
// A broadcast has one flow, and half of the blocks: with all of them the host link added nothing to
// NVLink, with three 7 % (2 H200).
constexpr int kLeastFlows = 2;
constexpr uint32_t kMostOpenTiles = 8;

bool has_bulk_copies(const sys::DeviceFacts& gpu) {
  constexpr int kFirstMajor = 9;
  return gpu.compute_major >= kFirstMajor &&
         gpu.max_shared_bytes_per_block >= static_cast<int>(pcie::kBulkSharedBytes);
}

bool is_vector(const std::byte* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

}  // namespace

int RingEngine::lanes_of(int num_flows) const {
  if (asked_lanes != 0) return asked_lanes;
  return std::clamp(num_blocks / std::max(num_flows, kLeastFlows), 1, pcie::kMostLanes);
}

// An all-reduce of 256 MiB on 2 H200: 703 us with three lanes, 690 with two.
int RingEngine::lanes_beside_sums(int num_flows) const {
  const int all = lanes_of(num_flows);
  return asked_lanes != 0 ? all : std::max((all * 2 + 2) / 3, 1);
}

// The last tiles of a slot are told of behind the first ones of the next, which has to be free: so
// what is under way must leave a slot of the ring alone, or its reader would wait for these tiles
// and the sender for the reader.
uint32_t RingEngine::open_tiles_of(const pcie::HostRing& ring, const pcie::Flows& flows) const {
  const auto is_sent = [](const pcie::Flow& flow) { return flow.source != nullptr; };
  const auto num_lanes =
      std::count_if(flows.flow, flows.flow + flows.num_flows, is_sent) * flows.num_lanes;
  const uint64_t tiles =
      window_bytes / pcie::kTileBytes / static_cast<uint64_t>(std::max<int64_t>(num_lanes, 1));
  const uint64_t tiles_a_slot = divided_up(ring.slot_bytes, pcie::kTileBytes);
  const uint64_t most = tiles_a_slot * (std::max(ring.num_slots, 1U) - 1) + 1;
  return static_cast<uint32_t>(std::clamp<uint64_t>(std::min(tiles, most), 1, kMostOpenTiles));
}

Status check_ring_wish(const Config& config) {
  const std::string& wanted = config.text("BRAID_GPU_RING");
  if (wanted == "auto" || wanted == "threads" || wanted == "bulk") return {};
  return invalid_argument("BRAID_GPU_RING: asked for auto, threads or bulk, found '{}'", wanted);
}

Result<RingEngine> choose_ring_engine(const Config& config, const sys::DeviceFacts& gpu) {
  BRAID_RETURN_IF_ERROR(check_ring_wish(config));
  const std::string& wanted = config.text("BRAID_GPU_RING");
  if (wanted == "bulk" && !has_bulk_copies(gpu))
    return invalid_argument("BRAID_GPU_RING: bulk copies need compute capability 9.0, found {}.{}",
                            gpu.compute_major, gpu.compute_minor);
  RingEngine engine;
  engine.has_bulk = wanted != "threads" && has_bulk_copies(gpu);
  engine.num_blocks = engine.has_bulk ? kBulkBlocks : kThreadBlocks;
  engine.window_bytes = config.bytes("BRAID_GPU_HOST_WINDOW");
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
