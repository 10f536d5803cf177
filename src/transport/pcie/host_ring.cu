#include "transport/nvlink/team.cuh"
#include "transport/nvlink/words.cuh"
#include "transport/pcie/host_ring.h"

namespace braid::pcie {

using nvlink::Expected;
using nvlink::Team;
using nvlink::Wait;
using transport::nvlink::Word;

namespace {

/// One ring as one block sees it.
struct RingView {
  RingCounters* counters;
  std::byte* slots;
  uint32_t slot_bytes;
  uint32_t num_slots;

  __device__ RingView(const HostRing& ring, int sender, int key, int lane)
      : slot_bytes(ring.slot_bytes), num_slots(ring.num_slots) {
    std::byte* segment = ring.segment[sender];
    counters = &reinterpret_cast<RingHead*>(segment)->counters[key][lane];
    const uint64_t index = static_cast<uint64_t>(key) * kMostLanes + lane;
    slots = segment + sizeof(RingHead) + index * num_slots * slot_bytes;
  }
  __device__ std::byte* slot(uint64_t number) const {
    return slots + number % num_slots * slot_bytes;
  }
};

/// Host memory changes under us: no cached copy.
struct FreshLoads {
  static constexpr uint32_t kInFlight = 8;  // a slot of 64 KiB whole
  static __device__ Word load(const Word* from) {
    return __builtin_bit_cast(Word, __ldcv(reinterpret_cast<const int4*>(from)));
  }
  static __device__ std::byte load(const std::byte* from) {
    return *const_cast<const volatile std::byte*>(from);
  }
};

/// By the block's threads, any alignment.
__device__ void copy_bytes(std::byte* to, const std::byte* from, uint64_t bytes) {
  transport::nvlink::copy_by_team<FreshLoads>({threadIdx.x, blockDim.x}, to, from, bytes);
}

/// True when every thread of the block says so. A barrier of the block.
__device__ bool all_agree(bool ok) { return __syncthreads_and(ok ? 1 : 0) != 0; }

__device__ bool is_reader(const Team& team, int key, int rank) {
  return rank != team.rank && (key == rank || key == team.size);
}

/// Flags are waited for and released by one warp, each step another: the fence of a release takes a
/// trip over PCIe, and the other warps copy meanwhile.
__device__ int lane_in_charge(uint64_t step) {
  const auto warp = static_cast<uint64_t>(threadIdx.x / 32);
  return warp == step % (blockDim.x / 32) ? static_cast<int>(threadIdx.x % 32) : -1;
}

/// Until every reader has left the slot. Lane r of the warp in charge waits for rank r.
__device__ bool wait_until_free(const Team& team, const RingView& view, int key, uint64_t number,
                                uint64_t step) {
  const int reader = lane_in_charge(step);
  if (reader < 0 || reader >= team.size || !is_reader(team, key, reader)) return true;
  if (number < view.num_slots) return true;
  return wait_for(team, &view.counters->free[reader].value,
                  {Wait::kSlotFree, reader, number - view.num_slots + 1});
}

__device__ bool wait_until_full(const Team& team, const RingView& view, int sender, uint64_t number,
                                uint64_t step) {
  return lane_in_charge(step) != 0 ||
         wait_for(team, &view.counters->full.value, {Wait::kSlotFull, sender, number + 1});
}

// Both loops have one barrier of the block a slot. Before it, the warp in charge of the next step
// has waited for the next slot, while the others copied this one; behind it, the warp in charge of
// this step releases this slot, while the others copy the next. One fence a slot, in the release:
// it covers what the barrier has gathered. A fence of every thread cost a third of the ring's rate.
__device__ void send(const Team& team, const HostRing& ring, const Flow& flow, int lane,
                     int num_lanes) {
  const RingView view(ring, flow.sender, flow.key, lane);
  uint64_t* progress = &ring.progress->sent[flow.key][lane];
  uint64_t number = *progress;
  uint64_t at = lane_begin(flow.bytes, lane, num_lanes);
  const uint64_t end = lane_begin(flow.bytes, lane + 1, num_lanes);
  if (!all_agree(at >= end || wait_until_free(team, view, flow.key, number, 0))) return;
  for (uint64_t step = 0; at < end; ++step, ++number) {
    const uint64_t length = min(static_cast<uint64_t>(view.slot_bytes), end - at);
    copy_bytes(view.slot(number), flow.source + at, length);
    at += length;
    if (!all_agree(at >= end || wait_until_free(team, view, flow.key, number + 1, step + 1)))
      return;
    if (lane_in_charge(step) == 0) nvlink::store_release(&view.counters->full.value, number + 1);
  }
  if (threadIdx.x == 0) *progress = number;
}

__device__ void receive(const Team& team, const HostRing& ring, const Flow& flow, int lane,
                        int num_lanes) {
  const RingView view(ring, flow.sender, flow.key, lane);
  uint64_t* progress = &ring.progress->received[flow.sender][flow.key][lane];
  uint64_t number = *progress;
  uint64_t at = lane_begin(flow.bytes, lane, num_lanes);
  const uint64_t end = lane_begin(flow.bytes, lane + 1, num_lanes);
  if (!all_agree(at >= end || wait_until_full(team, view, flow.sender, number, 0))) return;
  for (uint64_t step = 0; at < end; ++step, ++number) {
    const uint64_t length = min(static_cast<uint64_t>(view.slot_bytes), end - at);
    copy_bytes(flow.destination + at, view.slot(number), length);
    at += length;
    if (!all_agree(at >= end || wait_until_full(team, view, flow.sender, number + 1, step + 1)))
      return;
    if (lane_in_charge(step) == 0)
      nvlink::store_release(&view.counters->free[team.rank].value, number + 1);
  }
  if (threadIdx.x == 0) *progress = number;
}

}  // namespace

/// num_flows * num_lanes blocks: block b moves lane b % num_lanes of flow b / num_lanes. All blocks
/// of all ranks must be able to run at once.
extern "C" __global__ void __launch_bounds__(512)
    braid_host_ring(Team team, HostRing ring, Flows flows) {
  if (!all_agree(threadIdx.x != 0 || !has_failed(team))) return;
  const Flow& flow = flows.flow[blockIdx.x / flows.num_lanes];
  const auto lane = static_cast<int>(blockIdx.x) % flows.num_lanes;
  if (flow.source != nullptr)
    send(team, ring, flow, lane, flows.num_lanes);
  else
    receive(team, ring, flow, lane, flows.num_lanes);
}

}  // namespace braid::pcie
