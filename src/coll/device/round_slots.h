// RoundSlots: where the pieces of a round lie in every rank's scratch, a piece per source. A
// round's places are those of the round before by num_slots, whose pieces must have been taken out.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sys/cuda/types.h"

namespace braid::coll::device {

struct RoundSlots {
  static constexpr uint64_t kMost = 8;  // a round's marks are three: 24

  uint64_t piece_bytes;
  uint64_t num_ranks;
  uint64_t num_slots;

  /// As many as `room_bytes` of scratch hold.
  RoundSlots(uint64_t room_bytes, uint64_t bytes_of_piece, int size)
      : piece_bytes(bytes_of_piece),
        num_ranks(static_cast<uint64_t>(size)),
        num_slots(std::min(room_bytes / (piece_bytes * num_ranks), kMost)) {}

  /// Where `source`'s piece of a round lands in a scratch that begins at `base`.
  sys::DevicePtr at(sys::DevicePtr base, uint64_t round, int source) const {
    return base + (round % num_slots * num_ranks + static_cast<uint64_t>(source)) * piece_bytes;
  }
};

}  // namespace braid::coll::device
