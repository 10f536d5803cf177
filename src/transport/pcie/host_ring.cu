#include "transport/nvlink/words.cuh"
#include "transport/pcie/ring_view.cuh"

namespace braid::pcie {

using nvlink::Team;
using nvlink::Word;

namespace {

/// Host memory changes under us: no cached copy.
struct FreshLoads {
  static __device__ Word load(const Word* from) {
    return __builtin_bit_cast(Word, __ldcv(reinterpret_cast<const int4*>(from)));
  }
  static __device__ std::byte load(const std::byte* from) {
    return *const_cast<const volatile std::byte*>(from);
  }
};

/// By the block's threads, any alignment.
__device__ void copy_bytes(std::byte* to, const std::byte* from, uint64_t bytes) {
  nvlink::copy_by_threads<FreshLoads>({threadIdx.x, blockDim.x}, to, from, bytes);
}

/// True when every thread of the block says so. A barrier of the block.
__device__ bool all_agree(bool ok) { return __syncthreads_and(ok ? 1 : 0) != 0; }

__device__ void send(const Team& team, const HostRing& ring, const Flow& flow, int lane,
                     int num_lanes) {
  const RingView view(ring, flow.sender, flow.key, lane);
  uint64_t* progress = progress_of(ring, flow, lane);
  uint64_t number = *progress;
  const uint64_t end = lane_begin(flow.bytes, lane + 1, num_lanes);
  const auto reader = static_cast<int>(threadIdx.x);
  for (uint64_t at = lane_begin(flow.bytes, lane, num_lanes); at < end; ++number) {
    const uint64_t length = min(static_cast<uint64_t>(view.slot_bytes), end - at);
    bool ok = true;
    if (reader < team.size && is_reader(team, flow.key, reader))
      ok = view.await_free(team, reader, number);
    if (!all_agree(ok)) return;
    copy_bytes(view.slot(number), flow.source + at, length);
    // One fence a slot, in the release below: it covers what the barrier has gathered. A fence of
    // every thread before the barrier cost a third of the ring's rate.
    __syncthreads();
    if (threadIdx.x == 0) nvlink::store_release(&view.counters->full.value, number + 1);
    at += length;
  }
  if (threadIdx.x == 0) *progress = number;
}

__device__ void receive(const Team& team, const HostRing& ring, const Flow& flow, int lane,
                        int num_lanes) {
  const RingView view(ring, flow.sender, flow.key, lane);
  uint64_t* progress = progress_of(ring, flow, lane);
  uint64_t number = *progress;
  const uint64_t end = lane_begin(flow.bytes, lane + 1, num_lanes);
  for (uint64_t at = lane_begin(flow.bytes, lane, num_lanes); at < end; ++number) {
    const uint64_t length = min(static_cast<uint64_t>(view.slot_bytes), end - at);
    bool ok = true;
    if (threadIdx.x == 0) ok = view.await_full(team, flow.sender, number);
    if (!all_agree(ok)) return;
    copy_bytes(flow.destination + at, view.slot(number), length);
    __syncthreads();
    if (threadIdx.x == 0) nvlink::store_release(&view.counters->free[team.rank].value, number + 1);
    at += length;
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
