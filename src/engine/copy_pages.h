// Copies of many stretches by one kernel (copy_pages.cu): a copy by the driver costs some
// microseconds each, which is more than a page of 64 KiB takes.
#pragma once

#include <cstdint>

namespace braid::engine {

/// One stretch. Addresses are the GPU's: its own memory, a peer's that is mapped, or pinned memory
/// of the host.
struct PageCopy {
  uint64_t to = 0, from = 0, bytes = 0;
};

inline constexpr uint32_t kCopyThreads = 512;

/// An entry of a list of pages: their numbers on both sides.
struct PageEntry {
  uint32_t source = 0, target = 0;
};

/// What is the number of a page: a side of its entry, or its place in the list.
enum class PageKey : uint32_t { kSource, kTarget, kPlace };

/// Places at which one list of pages holds: pairs of regions, a layer's of a KV cache each, say. As many
/// as a kernel's arguments have room for.
inline constexpr uint32_t kMostPlanes = 192;

/// Where page 0 of a plane comes from, and where it goes.
struct PlaneEnds {
  uint64_t from = 0, to = 0;
};

/// Pages of one size, of several planes. Page `n` of a plane lies at from + n * from_stride, and goes to
/// the same of `to`.
struct PageJob {
  // PageEntry[count], of the GPU or pinned memory that others may write; 0: keys are places.
  uint64_t list = 0;
  uint64_t trouble = 0;  // uint32_t, becomes 1 when a number is above what is allowed
  uint64_t page_bytes = 0;
  uint64_t from_stride = 0, to_stride = 0;
  uint32_t count = 0;                   // of each plane
  uint32_t first_place = 0;             // of the first entry, where a place is the key
  uint32_t from_most = 0, to_most = 0;  // the highest numbers that are allowed in any plane
  PageKey from_key = PageKey::kPlace, to_key = PageKey::kPlace;
  uint32_t num_planes = 0;
  uint32_t blocks_each = 0;  // of a plane
  PlaneEnds planes[kMostPlanes];
};
static_assert(sizeof(PageJob) <= 4096);  // what every driver takes as arguments

/// Entries of a list, brought to the GPU by braid_fetch_list before the job reads them there.
inline constexpr uint64_t kMostFetched = 1 << 18;
inline constexpr uint32_t kFetchThreads = 256;

inline constexpr uint32_t kPageWarps = 4;  // of a block
inline constexpr uint32_t kPageThreads = 32 * kPageWarps;
inline constexpr uint64_t kPartBytes = 2048;        // of a page, for a warp
inline constexpr uint64_t kMostJobParts = 1 << 24;  // of a job

}  // namespace braid::engine
