// What a reduce kernel (reduce_body.cuh) is told: one struct, passed by value, laid out alike for
// the host's compiler and the device's.
#pragma once

#include <cstdint>

namespace braid::coll {

inline constexpr int kMostReduceArrays = 16;

/// The block size that the kernels are built for; any number of blocks is right.
inline constexpr int kReduceThreads = 512;

/// Bytes of dynamic shared memory for a ring (ring_body.cuh) of `width` vectors of 16 bytes for
/// every source, stage and thread of a block. Kernels take what they are launched with: none, or
/// less than one such width, and they sum through registers.
inline constexpr int kRingStages = 3;
constexpr uint32_t ring_bytes(int width, int num_srcs, int num_threads) {
  return static_cast<uint32_t>(kRingStages * width * num_srcs * num_threads * 16);
}

/// dsts[d][i] = op over r of srcs[r][i], for i in [0, count_elements) and every d; the bits are
/// those of reduce() (reduce.h). One source is copied.
/// Arrays   num_srcs and num_dsts of them, 1 to 16 each, in this GPU's memory or a peer's; a
///          destination may equal a source exactly and overlaps none otherwise; all destinations
///          are distinct. Any alignment; fast when all addresses are alike modulo 16.
/// Ordering what peers wrote into the sources must have arrived before the kernel starts; what it
///          writes to peers is there when the kernel has ended.
struct ReduceArgs {
  const void* srcs[kMostReduceArrays];
  void* dsts[kMostReduceArrays];
  uint64_t count_elements;
  int32_t num_srcs;
  int32_t num_dsts;
};
static_assert(sizeof(ReduceArgs) == 2 * 8 * kMostReduceArrays + 8 + 2 * 4);

}  // namespace braid::coll
