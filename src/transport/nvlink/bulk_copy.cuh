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

/// For one arrival a phase.
__device__ __forceinline__ void init_mbarrier(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
/// After the last init_mbarrier().
__device__ __forceinline__ void publish_mbarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
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

__device__ __forceinline__ void before_bulk_copies() {
  asm volatile("fence.proxy.async;" ::: "memory");
}
/// By every thread that has written what others' bulk stores then read, before they meet.
__device__ __forceinline__ void before_bulk_stores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// Arrives at `barrier` with its last byte; 0 bytes: at once.
__device__ __forceinline__ void load_bulk(uint32_t tile, const void* from, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
  if (bytes == 0) return;
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(tile),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_bulk(void* to, uint32_t tile, uint32_t bytes) {
  if (bytes == 0) return;
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(tile),
               "r"(bytes)
               : "memory");
}
/// Ends the thread's group of stores.
__device__ __forceinline__ void close_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Of the thread's groups, but for the last kOpen.
template <int kOpen>
__device__ __forceinline__ void wait_until_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kOpen) : "memory");
}
template <int kOpen>
__device__ __forceinline__ void wait_until_stored() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kOpen) : "memory");
}

#endif

}  // namespace braid::nvlink
