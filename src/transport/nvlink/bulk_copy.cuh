// Bulk asynchronous copies (sm_90 and later): one thread moves whole tiles between global and
// shared memory, host memory and peers' included.
//
// A load into a tile of shared memory is complete when the tile's mbarrier has seen all its bytes.
// Stores are in groups: a group's tiles may be written over once they have been read
// (wait_until_read), and what they wrote may be told of once it has been performed
// (wait_until_stored). Sizes and addresses are multiples of 16.
//
// Bulk copies are not ordered with a thread's other accesses by fences of those: what a thread has
// learnt by a flag comes before a bulk copy that depends on it only behind before_bulk_copies().
#pragma once

#include <cstdint>

#include "device/bulk.cuh"

namespace braid::nvlink {

__device__ __forceinline__ uint32_t shared_address(const void* of) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(of));
}

/// Words of shared memory by which warps of a block tell each other how far they are.
__device__ __forceinline__ uint32_t load_acquire_shared(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];"
               : "=r"(value)
               : "r"(shared_address(at))
               : "memory");
  return value;
}
__device__ __forceinline__ void store_release_shared(uint32_t* at, uint32_t value) {
  asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(shared_address(at)), "r"(value)
               : "memory");
}

#if __CUDA_ARCH__ >= 900

using device::arrive;
using device::before_bulk_copies;
using device::before_bulk_stores;
using device::close_stores;
using device::publish_mbarriers;
using device::wait_until_read;
using device::wait_until_stored;

/// For one arrival a phase.
__device__ __forceinline__ void init_mbarrier(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
/// Whether the phase is over; looks for as long as the hardware likes, some microseconds.
__device__ __forceinline__ bool is_over(uint32_t barrier, uint32_t phase) {
  uint32_t is_done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(is_done)
      : "r"(barrier), "r"(phase % 2)
      : "memory");
  return is_done != 0;
}

/// Arrives at `barrier` with its last byte; 0 bytes: at once.
__device__ __forceinline__ void load_bulk(uint32_t tile, const void* from, uint32_t bytes,
                                          uint32_t barrier) {
  device::arrive_and_expect(barrier, bytes);
  if (bytes != 0) device::load_bulk(tile, from, bytes, barrier);
}
__device__ __forceinline__ void store_bulk(void* to, uint32_t tile, uint32_t bytes) {
  if (bytes != 0) device::store_bulk(to, tile, bytes);
}

#endif

}  // namespace braid::nvlink
