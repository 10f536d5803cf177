// A copy within a GPU by a few blocks, for while the host ring runs (sm_90 and later). The driver's
// own copy takes all of the memory's rate for as long as it lasts, and meanwhile the ring stands
// still: a rank's own 256 MiB of an all-gather by the driver in 169 us held up a ring of 658 us for
// 120, by 10 blocks in 585 us for none (docs/decisions/0015-stores-that-wait-for-pcie.md).
//
// Thread 0 of a block moves every gridDim-th tile through a ring of tiles in shared memory: loads
// run kAhead tiles ahead, and a tile is loaded over again once its store has read it.
#include "transport/nvlink/bulk_copy.cuh"
#include "transport/pcie/local_copy.h"

namespace braid::pcie {

namespace {

#if __CUDA_ARCH__ >= 900

constexpr uint32_t kAhead = kLocalTiles / 2;

struct LocalMemory {
  alignas(128) std::byte tiles[kLocalTiles][kLocalTileBytes];
  uint64_t arrived[kLocalTiles];
};
static_assert(sizeof(LocalMemory) <= kLocalSharedBytes);

__device__ void copy_tiles(LocalMemory* memory, std::byte* to, const std::byte* from,
                           uint64_t bytes) {
  const uint64_t whole = bytes / 16 * 16;
  const uint64_t num_tiles = (whole + kLocalTileBytes - 1) / kLocalTileBytes;
  const auto mine = static_cast<uint32_t>((num_tiles + gridDim.x - 1 - blockIdx.x) / gridDim.x);
  const auto begin_of = [](uint32_t tile) {
    return (uint64_t{tile} * gridDim.x + blockIdx.x) * kLocalTileBytes;
  };
  const auto length_of = [&](uint32_t tile) {
    return static_cast<uint32_t>(
        min(whole - begin_of(tile), static_cast<uint64_t>(kLocalTileBytes)));
  };
  const auto place_of = [&](uint32_t tile) {
    return nvlink::shared_address(memory->tiles[tile % kLocalTiles]);
  };
  const auto arrived = [&](uint32_t tile) {
    return nvlink::shared_address(&memory->arrived[tile % kLocalTiles]);
  };
  for (uint32_t stored = 0, loaded = 0; stored < mine; ++stored) {
    for (; loaded < mine && loaded < stored + kAhead; ++loaded)
      nvlink::load_bulk(place_of(loaded), from + begin_of(loaded), length_of(loaded),
                        arrived(loaded));
    while (!nvlink::is_over(arrived(stored), stored / kLocalTiles)) {
    }
    nvlink::store_bulk(to + begin_of(stored), place_of(stored), length_of(stored));
    nvlink::close_stores();
    nvlink::wait_until_read<kLocalTiles - kAhead - 1>();
  }
  nvlink::wait_until_stored<0>();
}

#endif

}  // namespace

/// Any number of blocks of kLocalThreads, with kLocalSharedBytes of dynamic shared memory. `to` and
/// `from` are multiples of 16 and do not overlap; sm_90 or later.
extern "C" __global__ void __launch_bounds__(kLocalThreads)
    braid_local_copy(std::byte* to, const std::byte* from, uint64_t bytes) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x != 0) return;
  extern __shared__ __align__(128) unsigned char dynamic_memory[];
  auto* memory = reinterpret_cast<LocalMemory*>(dynamic_memory);
#pragma unroll 1
  for (uint64_t& barrier : memory->arrived) nvlink::init_mbarrier(nvlink::shared_address(&barrier));
  nvlink::publish_mbarriers();
  copy_tiles(memory, to, from, bytes);
  if (blockIdx.x == 0)
    for (uint64_t i = bytes / 16 * 16; i < bytes; ++i) to[i] = from[i];
#else
  __trap();  // the host does not launch it there
#endif
}

}  // namespace braid::pcie
