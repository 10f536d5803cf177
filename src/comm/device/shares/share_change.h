// ShareChange: one decision on a link's share, as the epoch log carries it: 32 bits, 0 for none.
#pragma once

#include <cstdint>
#include <optional>

#include "comm/device/shares/share_table.h"

namespace braid::comm {

struct ShareChange {
  ShareKey key;
  uint32_t parts = 0;     // of plan::kWhole
  bool is_trial = false;  // for the next call of the key alone
  friend bool operator==(const ShareChange&, const ShareChange&) = default;
};

//   31 there is one   30 trial   27..29 op   20..26 size class   0..16 parts
constexpr uint32_t pack(const ShareChange& v) {
  return 1U << 31 | (v.is_trial ? 1U << 30 : 0U) | static_cast<uint32_t>(v.key.op) << 27 |
         static_cast<uint32_t>(v.key.size_class) << 20 | v.parts;
}
constexpr std::optional<ShareChange> unpack(uint32_t bits) {
  if (bits >> 31 == 0) return std::nullopt;
  return ShareChange{{static_cast<plan::Op>(bits >> 27 & 7), static_cast<int>(bits >> 20 & 127)},
                     bits & 0x1ffff,
                     (bits >> 30 & 1) != 0};
}
static_assert(plan::kWhole < 1U << 17 && plan::kNumOps <= 8);

}  // namespace braid::comm
