// One lane of a ring, as the block that moves it sees it (host_ring.h).
#pragma once

#include "transport/nvlink/team.cuh"
#include "transport/pcie/host_ring.h"

namespace braid::pcie {

struct RingView {
  RingCounters* counters;
  std::byte* slots;
  uint32_t slot_bytes;
  uint32_t num_slots;

  __device__ RingView(const HostRing& ring, int sender, int key, int lane)
      : slot_bytes(ring.slot_bytes), num_slots(ring.num_slots) {
    std::byte* segment = ring.segment[sender];
    counters = &reinterpret_cast<RingHead*>(segment)->counters[key][lane];
    const uint64_t index = static_cast<uint64_t>(key) * ring.num_lanes + lane;
    slots = segment + sizeof(RingHead) + index * num_slots * slot_bytes;
  }
  __device__ std::byte* slot(uint64_t number) const {
    return slots + number % num_slots * slot_bytes;
  }
  /// Waits until `reader` has let go of what was in the slot before. False: gave up.
  __device__ bool await_free(const nvlink::Team& team, int reader, uint64_t number) const {
    return number < num_slots ||
           nvlink::wait_for(team, &counters->free[reader].value,
                            {nvlink::Wait::kSlotFree, reader, number - num_slots + 1});
  }
  __device__ bool await_full(const nvlink::Team& team, int sender, uint64_t number) const {
    return nvlink::wait_for(team, &counters->full.value,
                            {nvlink::Wait::kSlotFull, sender, number + 1});
  }
};

__device__ __forceinline__ bool is_reader(const nvlink::Team& team, int key, int rank) {
  return rank != team.rank && (key == rank || key == team.size);
}

/// How far this rank has come with a flow's lane.
__device__ __forceinline__ uint64_t* progress_of(const HostRing& ring, const Flow& flow, int lane) {
  return flow.source != nullptr ? &ring.progress->sent[flow.key][lane]
                                : &ring.progress->received[flow.sender][flow.key][lane];
}

}  // namespace braid::pcie
