// Formats of rows: elements to fp32 and back, and the block-scaled cast to E4M3.
//
// The cast is DeepEP's, bit for bit on finite input: per 128 channels of a token
//
//   amax = max(1e-4, |x|...)      stored scale = amax * fp32(1 / 448)      x * (448 / amax), rounded
//   rounded to a power of two:    stored scale = 2^e, e = ceil(log2(amax / 448))        x * 2^-e
//
// to nearest even, saturating at 448. A block that holds NaN or Inf comes out as NaN, all of it,
// and its scale is 1: DeepEP's would lose the NaN, and give NaN or zeros for Inf by chance.
//
// All arithmetic is in fp32 without contraction, so every build gives the same bits.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "moe/scale_form.h"

namespace braid::moe {

inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
/// To nearest even; NaN stays NaN.
inline uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}
float fp16_to_float(uint16_t bits);
uint16_t float_to_fp16(float value);
float e4m3_to_float(uint8_t bits);
/// To nearest even, saturating; NaN gives 0x7f.
uint8_t float_to_e4m3(float value);

/// Whether rows of this type can be summed: bf16, fp16, fp32.
constexpr bool is_summable(Dtype dtype) {
  return dtype == Dtype::kBfloat16 || dtype == Dtype::kFloat16 || dtype == Dtype::kFloat32;
}
/// `count` elements of a summable type as fp32, and back with one rounding each.
void widen(Dtype dtype, const std::byte* from, float* to, size_t count);
void narrow(Dtype dtype, const float* from, std::byte* to, size_t count);
/// sum += x, and sum += weight * x (the product is rounded before it is added).
void add_row(Dtype dtype, const std::byte* x, float* sum, size_t count);
void add_weighted_row(Dtype dtype, const std::byte* x, float weight, float* sum, size_t count);

/// Casts one block: 128 values to 128 bytes. Answers the stored scale; of kUe8m0 it is 2^e too, and
/// its exponent byte is exponent_byte().
float cast_block(const float* values, uint8_t* out, bool power_of_2);
inline uint8_t exponent_byte(float power_of_2) {
  return static_cast<uint8_t>(std::bit_cast<uint32_t>(power_of_2) >> 23);
}
/// One token of a summable type to E4M3, its scales behind each other at `scales`.
void cast_row(Dtype dtype, const std::byte* x, uint64_t hidden, ScaleForm form, std::byte* out,
              std::byte* scales);

}  // namespace braid::moe
