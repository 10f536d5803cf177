// What lies where in the memory that a comm takes of its GPU. Facts only: Device allocates it.
//
//   arena   board | scratch | packets | lines | relay | direct       peers write into all of it
//   local   counters that only this GPU's kernels use
//
// All of it but the scratch and the direct calls' data begins as zeros.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/nvlink/barrier.h"
#include "transport/pcie/host_ring.h"

namespace braid::comm {

/// Of the areas that the kernels of packets, lines, direct calls and relays write into, and how
/// much of the direct calls' is flags, which begin as zeros. The same on all ranks.
struct AreaSizes {
  uint64_t packet_bytes = 0;
  uint64_t line_bytes = 0;
  uint64_t direct_bytes = 0;
  uint64_t direct_flag_bytes = 0;
  uint64_t relay_bytes = 0;  // flags, all of it
  // Where not all of what the options ask for is to be taken at once; 0: all.
  uint64_t scratch_bytes = 0;
  uint64_t direct_limit = 0;
};

/// What only large messages need, taken when they come: a scratch and an area of direct kernels, in
/// place of the smaller ones of the arena.
///
///   room   scratch | direct
struct RoomSizes {
  uint64_t scratch_bytes = 0;
  uint64_t direct_bytes = 0;
  uint64_t direct_flag_bytes = 0;
  uint64_t direct_limit = 0;
};

// The driver's large page. An allocation that is not made of whole ones gets small pages: a copy
// engine then wrote 258 GB/s into a peer's scratch instead of 385.
constexpr uint64_t kLargePageBytes = 2 << 20;
constexpr uint64_t whole_pages(uint64_t bytes) {
  return (bytes + kLargePageBytes - 1) / kLargePageBytes * kLargePageBytes;
}

/// Offsets in the arena, in bytes.
struct ArenaLayout {
  static constexpr uint64_t kPageBytes = kLargePageBytes;
  static constexpr uint64_t kScratchAt = kPageBytes;  // behind the board
  static_assert(nvlink::kBoardBytes <= kScratchAt);

  uint64_t scratch_bytes = 0;
  AreaSizes areas;

  uint64_t packets_at() const { return kScratchAt + scratch_bytes; }
  uint64_t lines_at() const { return packets_at() + areas.packet_bytes; }
  uint64_t relay_at() const { return lines_at() + areas.line_bytes; }
  uint64_t direct_at() const { return relay_at() + areas.relay_bytes; }
  /// From packets_at() to here all begins as zeros, as does the board.
  uint64_t zeros_end() const { return direct_at() + areas.direct_flag_bytes; }
  uint64_t bytes() const { return whole_pages(direct_at() + areas.direct_bytes); }
};

/// What the kernels of one kind count; coll/ knows its shape.
struct CallCounters {
  alignas(32) std::byte bytes[32];
};

struct LocalMemory {
  CallCounters packets, lines, direct, relay;
  uint64_t held_until_ns;  // NVLink, where it is held to a rate
  uint32_t has_failed;     // a wait of this GPU's has ended in vain
  uint64_t numbers[nvlink::kNumChannels];
  uint64_t pair_numbers[nvlink::kMostRanks];
  pcie::RingProgress progress;
};

}  // namespace braid::comm
