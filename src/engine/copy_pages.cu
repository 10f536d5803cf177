// Copies a list of stretches. A block takes every gridDim-th of the list; the list lies in pinned
// host memory, and while a block copies one stretch it has asked for the next entry already.
//
// Sixteen bytes a thread and load where both ends are so aligned, four loads before the first
// store, which keeps enough of them on their way for memory far away; else single bytes.
#include "engine/copy_pages.h"

namespace braid::engine {
namespace {

constexpr uint32_t kDepth = 4;

__device__ void copy_vectors(uint4* to, const uint4* from, uint64_t count) {
  const uint64_t step = uint64_t{kCopyThreads} * kDepth;
  uint64_t i = threadIdx.x;
  for (; i + step - kCopyThreads < count; i += step) {
    uint4 held[kDepth];
#pragma unroll
    for (uint32_t k = 0; k < kDepth; ++k) held[k] = __ldcs(from + i + k * kCopyThreads);
#pragma unroll
    for (uint32_t k = 0; k < kDepth; ++k) __stcs(to + i + k * kCopyThreads, held[k]);
  }
  for (; i < count; i += kCopyThreads) __stcs(to + i, __ldcs(from + i));
}

__device__ void copy_bytes(unsigned char* to, const unsigned char* from, uint64_t count) {
  for (uint64_t i = threadIdx.x; i < count; i += kCopyThreads) to[i] = from[i];
}

}  // namespace

/// Any number of blocks of kCopyThreads. `list` is memory of the host that the GPU reaches.
extern "C" __global__ void __launch_bounds__(kCopyThreads)
    braid_copy_pages(const PageCopy* list, uint32_t count) {
  uint32_t at = blockIdx.x;
  if (at >= count) return;
  PageCopy next = list[at];
  while (true) {
    const PageCopy copy = next;
    at += gridDim.x;
    const bool has_next = at < count;
    if (has_next) next = list[at];
    const uint64_t vectors = ((copy.to | copy.from) & 15) == 0 ? copy.bytes / 16 : 0;
    copy_vectors(reinterpret_cast<uint4*>(copy.to), reinterpret_cast<const uint4*>(copy.from),
                 vectors);
    copy_bytes(reinterpret_cast<unsigned char*>(copy.to) + 16 * vectors,
               reinterpret_cast<const unsigned char*>(copy.from) + 16 * vectors,
               copy.bytes - 16 * vectors);
    if (!has_next) return;
  }
}

}  // namespace braid::engine
