#include "comm/device/links/ring_kernels.h"

#include <algorithm>

#include "sys/cuda/launch.h"
#include "transport/pcie/fatbins.h"
#include "transport/pcie/local_copy.h"

namespace braid::comm {

namespace {

constexpr uint32_t kRingThreads = 512;
// Among more than two a lane is one block, and hears of a slot from several readers: with half as
// much on its way it carried 7 % of an all-gather of 256 MiB, then no more (4 H200).
constexpr uint64_t kSlotBytes = 128 << 10;

constexpr uint64_t size_of_slots(int num_ranks) {
  return num_ranks > 2 ? kSlotBytes : kSlotBytes / 2;
}

pcie::Flows flows_of(const LinkPart& part, int num_lanes) {
  static_assert(LinkPart::kMostFlows == pcie::kMostFlows);
  pcie::Flows flows{};
  flows.num_flows = part.num_flows;
  flows.num_lanes = num_lanes;
  for (size_t i = 0; i < static_cast<size_t>(part.num_flows); ++i) {
    const Flow& flow = part.flows[i];
    flows.flow[i] = {flow.sender, flow.reader, flow.source, flow.destination, flow.bytes};
  }
  return flows;
}

}  // namespace

Status RingKernels::prepare(const LinkGround& ground) {
  BRAID_ASSIGN_OR_RETURN(const sys::DeviceFacts facts, ground.cuda.device(ground.ordinal));
  BRAID_ASSIGN_OR_RETURN(engine_, choose_ring_engine(ground.state.config, facts));
  KernelCache& cache = ground.kernels;
  BRAID_ASSIGN_OR_RETURN(threads_, cache.find(kernels::host_ring_fatbin(), "braid_host_ring"));
  if (!engine_.has_bulk) return {};
  BRAID_ASSIGN_OR_RETURN(bulk_, cache.find(kernels::host_ring_bulk_fatbin(), "braid_host_ring_bulk",
                                           pcie::kBulkSharedBytes));
  BRAID_ASSIGN_OR_RETURN(local_copy_, cache.find(kernels::local_copy_fatbin(), "braid_local_copy",
                                                 pcie::kLocalSharedBytes));
  return {};
}

Status RingKernels::run(const LinkGround& ground, sys::Stream stream, const pcie::HostRing& ring,
                        const LinkPart& part, int num_lanes) const {
  if (part.is_empty()) return {};
  if (num_lanes > ring.num_lanes)
    return internal_error("gpu host ring: {} lanes, {} have slots", num_lanes, ring.num_lanes);
  pcie::Flows flows = flows_of(part, num_lanes);
  const auto num_blocks = static_cast<uint32_t>(flows.num_flows * num_lanes);
  if (!engine_.has_bulk || !are_whole_vectors(flows))
    return sys::launch(ground.cuda, threads_, {num_blocks, kRingThreads, 0}, stream, ground.team,
                       ring, flows);
  flows.open_tiles = static_cast<int32_t>(engine_.open_tiles_of(ring, flows));
  return sys::launch(ground.cuda, bulk_, {num_blocks, pcie::kBulkThreads, pcie::kBulkSharedBytes},
                     stream, ground.team, ring, flows);
}

bool RingKernels::can_copy(sys::DevicePtr to, sys::DevicePtr from) const {
  return engine_.has_bulk && to % 16 == 0 && from % 16 == 0 && to != from;
}

Status RingKernels::copy(const LinkGround& ground, sys::Stream stream, sys::DevicePtr to,
                         sys::DevicePtr from, uint64_t bytes) const {
  // A block copies 46 GB/s. Ten are done with a rank's own block when NVLink is done with the
  // other's; among more ranks there is more time.
  const uint32_t num_blocks = ground.team.size == 2 ? 10 : 6;
  return sys::launch(ground.cuda, local_copy_,
                     {num_blocks, pcie::kLocalThreads, pcie::kLocalSharedBytes}, stream,
                     sys::pointer_to<std::byte>(to), sys::pointer_to<const std::byte>(from), bytes);
}

Status read_slots(const Config& config, int num_ranks, pcie::HostRing& ring) {
  constexpr uint64_t kLeastBytes = 128, kMostBytes = 16 << 20;
  constexpr int64_t kMostSlots = 1024;
  const uint64_t asked = config.bytes("BRAID_GPU_SLOT");
  const uint64_t slot_bytes = asked != 0 ? asked : size_of_slots(num_ranks);
  if (slot_bytes < kLeastBytes || slot_bytes > kMostBytes)
    return invalid_argument("BRAID_GPU_SLOT: asked for {} to {} bytes, found {}", kLeastBytes,
                            kMostBytes, slot_bytes);
  const int64_t num_slots = config.integer("BRAID_GPU_SLOTS");
  if (num_slots < 1 || num_slots > kMostSlots)
    return invalid_argument("BRAID_GPU_SLOTS: asked for 1 to {}, found {}", kMostSlots, num_slots);
  ring.slot_bytes = static_cast<uint32_t>(slot_bytes) & ~127U;
  ring.num_slots = static_cast<uint32_t>(num_slots);
  return {};
}

}  // namespace braid::comm
