// One number at a time between the small floats and fp32. What the library runs are vectors and
// kernels of the same code, whose rounding, NaN and overflow src/coll/reduce/formats.h tells.
#pragma once

#include <cstdint>

#include "coll/reduce/formats.h"

namespace braid::coll {

inline float fp16_to_float(uint16_t bits) { return generic::Fp16::to_float(bits); }
inline float bf16_to_float(uint16_t bits) { return generic::Bf16::to_float(bits); }
inline float e4m3_to_float(uint8_t bits) { return generic::E4m3::to_float(bits); }
inline float e5m2_to_float(uint8_t bits) { return generic::E5m2::to_float(bits); }

inline uint16_t float_to_fp16(float value) {
  return static_cast<uint16_t>(generic::Fp16::from_float(value));
}
inline uint16_t float_to_bf16(float value) {
  return static_cast<uint16_t>(generic::Bf16::from_float(value));
}
inline uint8_t float_to_e4m3(float value) {
  return static_cast<uint8_t>(generic::E4m3::from_float(value));
}
inline uint8_t float_to_e5m2(float value) {
  return static_cast<uint8_t>(generic::E5m2::from_float(value));
}

}  // namespace braid::coll
