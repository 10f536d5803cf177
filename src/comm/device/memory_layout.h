// What lies where in the memory that a comm takes of its GPU. Facts only: SymmetricArena allocates
// it.
//
//   arena   signals | scratch | area | area | ...       peers write into all of it
//   room            scratch | area | ...               in place of the arena's, for large messages
//   local   counters that only this GPU's kernels use
//
// An area belongs to one kind of kernel, which registers it: nothing here knows any of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/rounding.h"
#include "transport/nvlink/barrier.h"

namespace braid::comm {

/// An area that a kind of kernel asks for in every rank's arena. The same on all ranks.
struct AreaRequest {
  std::string_view name;     // a literal: the kind of kernel
  uint64_t bytes = 0;        // 0: none
  uint64_t zero_bytes = 0;   // of its beginning, that begin as zeros
  uint64_t limit_bytes = 0;  // the largest message that may go by it, as its kernels count
  // Stores of 16 bytes that no reader sees half of, between all pairs of ranks: else its limit becomes
  // 0.
  bool needs_whole_stores = false;
};

/// What a comm takes at once. Where it is not all that options allow, the rest is a room's.
struct ArenaRequest {
  uint64_t scratch_bytes = 0;
  std::vector<AreaRequest> areas;
  uint64_t spare_bytes = 16 << 20;  // SymmetricArena::spare(); of an arena alone
};

// The driver's large page. An allocation that is not made of whole ones gets small pages: a copy
// engine then wrote 258 GB/s into a peer's scratch instead of 385.
inline constexpr uint64_t kLargePageBytes = 2 << 20;
constexpr uint64_t whole_pages(uint64_t bytes) { return round_up(bytes, kLargePageBytes); }

/// Offsets in an arena or a room, in bytes: the scratch, then areas, one after the other.
class MemoryLayout {
 public:
  struct Placed {
    AreaRequest area;
    uint64_t begin;
  };
  static constexpr uint64_t kAlignment = 256;

  MemoryLayout() = default;
  /// `scratch_at`: what lies before it is somebody else's.
  MemoryLayout(uint64_t scratch_at, const ArenaRequest& request)
      : scratch_at_(scratch_at), scratch_bytes_(request.scratch_bytes) {
    uint64_t end = scratch_at_ + scratch_bytes_;
    for (const AreaRequest& area : request.areas) {
      if (area.bytes == 0) continue;
      placed_.push_back({area, round_up(end, kAlignment)});
      end = placed_.back().begin + area.bytes;
    }
    bytes_ = whole_pages(end);
  }

  uint64_t scratch_at() const { return scratch_at_; }
  uint64_t scratch_bytes() const { return scratch_bytes_; }
  const std::vector<Placed>& areas() const { return placed_; }
  /// Whole pages.
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t scratch_at_ = 0, scratch_bytes_ = 0, bytes_ = 0;
  std::vector<Placed> placed_;
};

/// Where the scratch of an arena begins, behind the signal pad.
inline constexpr uint64_t kArenaScratchAt = kLargePageBytes;
static_assert(nvlink::kSignalPadBytes <= kArenaScratchAt);

/// What the kernels of one kind count; they know its shape.
struct CallCounters {
  alignas(32) std::byte bytes[32];
};
inline constexpr size_t kMostAreas = 8;

struct LocalMemory {
  CallCounters counters[kMostAreas];
  uint32_t has_failed;  // a wait of this GPU's has ended in vain
  uint64_t numbers[nvlink::kNumChannels];
  uint64_t pair_numbers[nvlink::kMostRanks];
};

}  // namespace braid::comm
