// The host ring by bulk copies: the same ring as braid_host_ring's, whichever of the two the other
// ranks run.
#include "transport/pcie/bulk_lane.cuh"

namespace braid::pcie {

/// num_flows * num_lanes blocks as braid_host_ring's, of kBulkThreads, with kBulkSharedBytes of
/// dynamic shared memory. Sources and destinations begin at multiples of 16; sm_90 or later.
extern "C" __global__ void __launch_bounds__(kBulkThreads)
    braid_host_ring_bulk(nvlink::Team team, HostRing ring, Flows flows) {
#if __CUDA_ARCH__ >= 900
  if (__syncthreads_or(threadIdx.x == 0 && has_failed(team)) != 0) return;
  extern __shared__ __align__(128) unsigned char memory[];
  const auto lane = static_cast<int>(blockIdx.x) % flows.num_lanes;
  BulkLane bulk(reinterpret_cast<BulkMemory*>(memory), team, ring,
                flows.flow[blockIdx.x / flows.num_lanes], lane, flows.num_lanes);
  bulk.run(threadIdx.x / 32, threadIdx.x % 32, flows.open_tiles);
#else
  __trap();  // the host does not launch it there
#endif
}

}  // namespace braid::pcie
