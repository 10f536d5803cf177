// The cast to E4M3 of formats.h, bit for bit, on its way into slots. Eight lanes have a block of 128
// channels, 16 each: what of fp8 is a vector.
#pragma once

#include "moe/gpu/rows.cuh"

namespace braid::moe::gpu {

inline constexpr int kCastChannels = 16;  // of a lane
inline constexpr int kLanesOfBlock = kScaleBlock / kCastChannels;

/// Finite, to nearest even, saturating at 448: two of them in 16 bits, `low` in the lower byte.
__device__ __forceinline__ uint32_t e4m3_pair(float low, float high) {
#if __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  const auto round = [](float value) -> uint32_t {
    const uint32_t bits = __float_as_uint(value), magnitude = bits & 0x7fffffff;
    const uint32_t normal = (magnitude - (120U << 23) + 0x7ffff + ((magnitude >> 20) & 1)) >> 20;
    const uint32_t subnormal = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), 16384.0F)) -
                               __float_as_uint(16384.0F);
    return (magnitude < (121U << 23) ? subnormal : min(normal, 0x7eU)) | (bits >> 24 & 0x80);
  };
  return round(low) | round(high) << 8;
#endif
}

struct CastVector {
  uint4 row;    // of this lane: 16 channels
  float scale;  // as stored, of the lane's block; a power of two where asked for
};

/// By the eight lanes of a block together: all 32 lanes call.
template <typename Type>
__device__ __forceinline__ CastVector cast(const uint4 (&in)[Type::kBytes], bool power_of_2) {
  constexpr uint32_t kInf = 0x7f800000, kLeastAmax = 0x38d1b717;  // 1e-4
  float values[kCastChannels];
#pragma unroll
  for (int i = 0; i < Type::kBytes; ++i) Type::widen(in[i], values + i * kLanes<Type>);
  // Magnitudes in the order of their bits, where Inf and NaN are the largest.
  uint32_t most = kLeastAmax;
#pragma unroll
  for (int i = 0; i < kCastChannels; ++i) most = max(most, __float_as_uint(values[i]) & 0x7fffffff);
#pragma unroll
  for (int far = 1; far < kLanesOfBlock; far *= 2)
    most = max(most, __shfl_xor_sync(~0U, most, far));
  if (most >= kInf) return {{0x7f7f7f7f, 0x7f7f7f7f, 0x7f7f7f7f, 0x7f7f7f7f}, 1.0F};
  const float amax = __uint_as_float(most);
  float stored = __fmul_rn(amax, 1.0F / 448.0F);
  float multiplier = __fdiv_rn(448.0F, amax);
  if (power_of_2) {
    const uint32_t bits = __float_as_uint(stored);
    stored = __uint_as_float(((bits >> 23) + ((bits & 0x7fffff) != 0 ? 1U : 0U)) << 23);
    multiplier = __fdiv_rn(1.0F, stored);
  }
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* const v = values + 4 * i;
    words[i] = e4m3_pair(__fmul_rn(v[0], multiplier), __fmul_rn(v[1], multiplier)) |
               e4m3_pair(__fmul_rn(v[2], multiplier), __fmul_rn(v[3], multiplier)) << 16;
  }
  return {{words[0], words[1], words[2], words[3]}, stored};
}

}  // namespace braid::moe::gpu
