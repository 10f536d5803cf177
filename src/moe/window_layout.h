// WindowLayout: what lies where in the memory of a rank that the others store rows into, on the host
// and on a GPU alike.
//
//   flag lines [2][N]   one line per half and source      written by that source only
//   ack lines  [2][N]   one word per half and peer        written by that peer only
//   mask lines [N]      whom a peer has given up          written by that peer only
//   half 0, half 1      rows of even and odd phases       see phases.h
//
// A half is N regions of equal size, one for each source, for rows whose place is the source's own
// business; for the rows of a combine that come back to their owner's slots it is one area.
#pragma once

#include <cstdint>

#include "base/rounding.h"

namespace braid::moe {

inline constexpr uint64_t kLineBytes = 64;
/// Where rows may begin so that a GPU stores whole lines of its memory, and whole packets of NVLink.
inline constexpr uint64_t kRowAlignment = 128;
inline constexpr int kHalves = 2;

struct WindowLayout {
  int num_ranks = 1;
  uint64_t half_bytes = 0;  // a multiple of kRowAlignment per rank

  /// A layout whose halves have at least `bytes` each.
  static constexpr WindowLayout with_halves(int num_ranks, uint64_t bytes) {
    const auto n = static_cast<uint64_t>(num_ranks);
    return {num_ranks, round_up(bytes, n * kRowAlignment)};
  }
  constexpr uint64_t ranks() const { return static_cast<uint64_t>(num_ranks); }
  constexpr uint64_t flag_line(uint64_t half, int source) const {
    return (half * ranks() + static_cast<uint64_t>(source)) * kLineBytes;
  }
  constexpr uint64_t ack_line(uint64_t half, int peer) const {
    return (kHalves * ranks() + half * ranks() + static_cast<uint64_t>(peer)) * kLineBytes;
  }
  constexpr uint64_t mask_line(int peer) const {
    return (uint64_t{2} * kHalves * ranks() + static_cast<uint64_t>(peer)) * kLineBytes;
  }
  constexpr uint64_t half(uint64_t index) const {
    return round_up((uint64_t{2} * kHalves + 1) * ranks() * kLineBytes, kRowAlignment) +
           index * half_bytes;
  }
  constexpr uint64_t region_bytes() const { return half_bytes / ranks(); }
  constexpr uint64_t region(uint64_t index, int source) const {
    return half(index) + static_cast<uint64_t>(source) * region_bytes();
  }
  constexpr uint64_t bytes() const { return half(kHalves); }
};

/// Where a signal's number lies in its line; what it says of itself lies before.
inline constexpr uint64_t kNumberOffset = kLineBytes - sizeof(uint64_t);

}  // namespace braid::moe
