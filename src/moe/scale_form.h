// How rows that are cast to E4M3 carry their scales (formats.h says what these are).
#pragma once

#include <cstdint>

namespace braid::moe {

inline constexpr int kScaleBlock = 128;  // channels that share a scale

enum class ScaleForm : uint8_t {
  kNone,      // rows travel as they are
  kFloat,     // fp32 scale
  kPowerOf2,  // fp32 scale that is a power of two
  kUe8m0,     // its exponent alone, in a byte
};

/// Bytes of a token's scales: 4 a block, 1 with kUe8m0.
constexpr uint64_t scale_bytes(ScaleForm form, uint64_t hidden) {
  if (form == ScaleForm::kNone) return 0;
  return hidden / kScaleBlock * (form == ScaleForm::kUe8m0 ? 1 : 4);
}

}  // namespace braid::moe
