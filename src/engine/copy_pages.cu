// Copies pages of one size by a list of their numbers, or any stretches by a list of addresses.
//
// Sixteen bytes a thread and load where both ends are so aligned, four loads before the first
// store, which keeps enough of them on their way for memory far away; else single bytes.
#include "engine/copy_pages.h"

namespace braid::engine {
namespace {

constexpr uint32_t kDepth = 4;
constexpr uint32_t kWarpThreads = 32;
static_assert(kPartBytes == uint64_t{kWarpThreads} * kDepth * sizeof(uint4));

/// The first 16-byte words of `kThreads` threads, of which this is `thread`.
template <uint32_t kThreads>
__device__ void copy_vectors(uint4* to, const uint4* from, uint64_t count, uint32_t thread) {
  constexpr uint64_t kStep = uint64_t{kThreads} * kDepth;
  uint64_t i = thread;
#pragma unroll 1
  for (; i + kStep - kThreads < count; i += kStep) {
    uint4 held[kDepth];
#pragma unroll
    for (uint32_t k = 0; k < kDepth; ++k) held[k] = from[i + k * kThreads];
#pragma unroll
    for (uint32_t k = 0; k < kDepth; ++k) to[i + k * kThreads] = held[k];
  }
  for (; i < count; i += kThreads) to[i] = from[i];
}

template <uint32_t kThreads>
__device__ void copy(uint64_t to, uint64_t from, uint64_t bytes, uint32_t thread) {
  const uint64_t vectors = ((to | from) & 15) == 0 ? bytes / 16 : 0;
  copy_vectors<kThreads>(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from),
                         vectors, thread);
  auto* const last_to = reinterpret_cast<unsigned char*>(to);
  const auto* const last_from = reinterpret_cast<const unsigned char*>(from);
  for (uint64_t i = 16 * vectors + thread; i < bytes; i += kThreads) last_to[i] = last_from[i];
}

// The list may be memory of the host that another process writes: an entry is read by one
// instruction, which the compiler cannot repeat, so that what was checked is what is used. An ordinary
// load, which caches may answer: a volatile one goes to the host for each warp, and those of one page
// wait for each other there (512 pages of 1 MiB took 173 ms instead of 0.4).
__device__ uint2 read_entry(uint64_t list, uint32_t place) {
  uint2 entry;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(entry.x), "=r"(entry.y)
               : "l"(list + place * sizeof(PageEntry)));
  return entry;
}

__device__ uint2 entry_of(const PageJob& job, uint32_t page) {
  return job.list == 0 ? make_uint2(0, 0) : read_entry(job.list, page);
}

__device__ uint32_t number_of(PageKey key, uint2 entry, uint32_t place) {
  return key == PageKey::kSource ? entry.x : key == PageKey::kTarget ? entry.y : place;
}

}  // namespace

/// Brings a list from the host to the GPU; any number of blocks of kFetchThreads. Where many blocks
/// copy parts of one page, each would ask the host for the same line, and they are answered one after
/// the other: pages of 64 KiB took 0.84 ms by a list on the host, 0.38 by one that was brought.
extern "C" __global__ void __launch_bounds__(kFetchThreads)
    braid_fetch_list(uint2* to, uint64_t from, uint32_t count) {
  for (uint32_t i = blockIdx.x * kFetchThreads + threadIdx.x; i < count;
       i += gridDim.x * kFetchThreads)
    to[i] = read_entry(from, i);
}

/// A warp for every part of a page, in turn; for each plane job.blocks_each blocks of kPageWarps, which
/// may be any number. The next entry is asked for before a part is copied.
extern "C" __global__ void __launch_bounds__(kPageThreads)
    braid_copy_page_list(const __grid_constant__ PageJob job) {
  const uint32_t plane = blockIdx.x / job.blocks_each;
  const PlaneEnds ends = job.planes[plane];
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint32_t step = job.blocks_each * kPageWarps;
  const auto parts_each = static_cast<uint32_t>((job.page_bytes + kPartBytes - 1) / kPartBytes);
  const uint32_t num_parts = job.count * parts_each;
  uint32_t part = (blockIdx.x - plane * job.blocks_each) * kPageWarps + threadIdx.x / kWarpThreads;
  if (part >= num_parts) return;
  uint2 next = entry_of(job, part / parts_each);
  while (true) {
    const uint2 entry = next;
    const uint32_t page = part / parts_each;
    const uint64_t offset = (part - page * parts_each) * kPartBytes;
    part += step;
    const bool has_next = part < num_parts;
    if (has_next) next = entry_of(job, part / parts_each);
    const uint32_t from = number_of(job.from_key, entry, job.first_place + page);
    const uint32_t to = number_of(job.to_key, entry, job.first_place + page);
    if (from <= job.from_most && to <= job.to_most) {
      const uint64_t left = job.page_bytes - offset;
      copy<kWarpThreads>(ends.to + to * job.to_stride + offset,
                         ends.from + from * job.from_stride + offset,
                         left < kPartBytes ? left : kPartBytes, lane);
    } else {
      *reinterpret_cast<volatile uint32_t*>(job.trouble) = 1;
    }
    if (!has_next) return;
  }
}

/// A block takes every gridDim-th of the list, which lies in pinned memory of the host; any number
/// of blocks of kCopyThreads. While a block copies one stretch it has asked for the next entry.
extern "C" __global__ void __launch_bounds__(kCopyThreads)
    braid_copy_pages(const PageCopy* list, uint32_t count) {
  uint32_t at = blockIdx.x;
  if (at >= count) return;
  PageCopy next = list[at];
  while (true) {
    const PageCopy stretch = next;
    at += gridDim.x;
    const bool has_next = at < count;
    if (has_next) next = list[at];
    copy<kCopyThreads>(stretch.to, stretch.from, stretch.bytes, threadIdx.x);
    if (!has_next) return;
  }
}

}  // namespace braid::engine
