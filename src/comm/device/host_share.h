// How much of a message the host link carries beside NVLink. It begins late, by the time that its
// slots take to fill; so its share grows with the message as a - b / bytes, from what was found
// best for a short message to what was found best for a long one.
#pragma once

#include <cstdint>

namespace braid::comm {

struct HostShare {
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

}  // namespace braid::comm
