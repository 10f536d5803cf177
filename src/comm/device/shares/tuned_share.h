// How much of a message a link carries beside the base link. It begins late, by the time that its
// slots take to fill; so its share grows with the message as a - b / bytes, from what was found
// best for a short message to what was found best for a long one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plan/plan.h"

namespace braid::comm {

struct TunedShare {
  uint64_t short_bytes = 0, long_bytes = 0;  // equal: one share for all
  double short_share = 0, long_share = 0;    // 0 to 1

  /// Of a message of `bytes`.
  double at(uint64_t bytes) const {
    if (bytes >= long_bytes) return long_share;
    if (bytes <= short_bytes) return short_share;
    const auto inverse = [](uint64_t of) { return 1 / static_cast<double>(of); };
    const double way =
        (inverse(short_bytes) - inverse(bytes)) / (inverse(short_bytes) - inverse(long_bytes));
    return short_share + way * (long_share - short_share);
  }
};

/// Parts of a block begin and end at multiples of it: whole elements, aligned for every access.
inline constexpr uint64_t kCutUnit = 256;

/// What the link carries of a block when its share is `parts` of plan::kWhole: at most so
/// much, and of that `used`. Calls are cut and stage 2 counts by the same words.
inline uint64_t part_bytes(uint64_t block_bytes, uint32_t parts, uint64_t most_bytes, double used) {
  const auto wanted =
      static_cast<uint64_t>(static_cast<double>(block_bytes) * parts / plan::kWhole);
  const uint64_t all = std::min(wanted, most_bytes) / kCutUnit * kCutUnit;
  return static_cast<uint64_t>(static_cast<double>(all) * used) / kCutUnit * kCutUnit;
}

}  // namespace braid::comm
