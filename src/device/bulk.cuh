// Asynchronous copies between global and shared memory, and the mbarriers they report to (sm_90 and
// later). One thread moves whole tiles, those of peers and of the host included.
//
// A load is complete when its mbarrier has seen all its bytes. Stores are in groups: their tiles
// may be written over once they have been read (wait_until_read), and what they wrote may be told of
// once it has been performed (wait_until_stored). To tell after wait_until_read() is a race.
//
// These copies go by a proxy of their own: ordinary accesses are ordered with them only by
// before_bulk_copies(), in shared memory alone by before_bulk_stores().
#pragma once

#include <cstdint>

#include "device/tensor_map.h"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

namespace braid::device {

__device__ __forceinline__ uint32_t shared_address(const void* of) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(of));
}

// ---- mbarriers, by their address in shared memory ----

__device__ __forceinline__ void init_mbarrier(uint32_t barrier, uint32_t num_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(num_arrivals)
               : "memory");
}
/// After the last init_mbarrier(), before the block or the cluster meets.
__device__ __forceinline__ void publish_mbarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// At the barrier of that address in block `block` of the cluster. For who has only read, or has
/// had others read for it, and has seen that end: it orders no accesses of this thread between the
/// blocks. With .release.cluster it would, by a fence of the whole GPU at every arrival: a GEMM that
/// told its cluster of every stage so ran at two thirds of its speed.
__device__ __forceinline__ void arrive_at_block(uint32_t barrier, uint32_t block) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(block)
      : "memory");
}
/// Arrives, and the phase lasts until `bytes` have come, too.
__device__ __forceinline__ void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
/// Until the phase of that parity is over. Only what this block and its copies do ends it: waits for
/// others have a deadline (wait.cuh), so this one ends, too.
__device__ __forceinline__ void wait_mbarrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "LOOK:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra DONE;\nbra LOOK;\nDONE:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// ---- words of shared memory by which warps of a block tell each other how far they are ----

__device__ __forceinline__ uint32_t load_acquire_shared(uint32_t at) {
  uint32_t value;
  asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
  return value;
}
__device__ __forceinline__ void store_release_shared(uint32_t at, uint32_t value) {
  asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}

// ---- order with ordinary accesses ----

/// Between an acquire and the bulk copies that depend on it.
__device__ __forceinline__ void before_bulk_copies() {
  asm volatile("fence.proxy.async;" ::: "memory");
}
/// By every thread that has written shared memory which bulk stores read, before it says so.
__device__ __forceinline__ void before_bulk_stores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- tiles of matrices ----

struct TileAt {  // in elements: along a row, the row, the matrix
  int32_t column, row, matrix;
};
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
__device__ __forceinline__ void load_tile(uint32_t to, const TensorMap& map, TileAt at,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(&map), "r"(at.column), "r"(at.row), "r"(at.matrix), "r"(barrier)
      : "memory");
}
/// Into every block of the cluster that `blocks` has a bit for, at the same addresses; each one's
/// barrier hears of its bytes.
__device__ __forceinline__ void load_tile_for(uint32_t to, const TensorMap& map, TileAt at,
                                              uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(&map), "r"(at.column), "r"(at.row), "r"(at.matrix), "r"(barrier), "h"(blocks)
      : "memory");
}
__device__ __forceinline__ void store_tile(const TensorMap& map, TileAt at, uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
      "r"(at.column), "r"(at.row), "r"(at.matrix), "r"(from)
      : "memory");
}

// ---- plain bytes: sizes and addresses are multiples of 16 ----

/// Behind an arrive_and_expect() of these bytes.
__device__ __forceinline__ void load_bulk(uint32_t to, const void* from, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void store_bulk(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}

// ---- groups of stores ----

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

// ---- clusters ----

__device__ __forceinline__ uint32_t block_in_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// All threads of all blocks of the cluster.
__device__ __forceinline__ void meet_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

}  // namespace braid::device

#endif
