// Whole units of a length.
#pragma once

#include <cstdint>

namespace braid {

constexpr uint64_t divided_up(uint64_t value, uint64_t by) { return (value + by - 1) / by; }
constexpr uint64_t round_up(uint64_t value, uint64_t unit) {
  return divided_up(value, unit) * unit;
}

}  // namespace braid
