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

/// What a lane has of kTimes blocks.
template <int kTimes>
struct CastVectors {
  uint4 rows[kTimes];    // 16 channels
  float scales[kTimes];  // as stored, of the lane's block; a power of two where asked for
};

/// kTimes blocks by the eight lanes of each together: all 32 lanes call. There is no branch that only some
/// lanes would take, so what is done for one block goes on while that of another waits.
template <typename Type, int kTimes>
__device__ __forceinline__ CastVectors<kTimes> cast(const uint4 (&in)[kTimes][Type::kBytes],
                                                    bool power_of_2) {
  constexpr uint32_t kInf = 0x7f800000, kLeastAmax = 0x38d1b717;  // 1e-4
  constexpr uint32_t kNans = 0x7f7f7f7f, kTwiceBias = 254;
  float values[kTimes][kCastChannels];
  // Magnitudes in the order of their bits, where Inf and NaN are the largest.
  uint32_t most[kTimes];
#pragma unroll
  for (int t = 0; t < kTimes; ++t) {
#pragma unroll
    for (int v = 0; v < Type::kBytes; ++v) Type::widen(in[t][v], values[t] + v * kLanes<Type>);
    most[t] = kLeastAmax;
#pragma unroll
    for (int i = 0; i < kCastChannels; ++i)
      most[t] = max(most[t], __float_as_uint(values[t][i]) & 0x7fffffff);
  }
#pragma unroll
  for (int far = 1; far < kLanesOfBlock; far *= 2)
#pragma unroll
    for (int t = 0; t < kTimes; ++t) most[t] = max(most[t], __shfl_xor_sync(~0U, most[t], far));
  CastVectors<kTimes> made;
#pragma unroll
  for (int t = 0; t < kTimes; ++t) {
    const bool is_finite = most[t] < kInf;
    const float amax = is_finite ? __uint_as_float(most[t]) : 1.0F;
    float stored = __fmul_rn(amax, 1.0F / 448.0F);
    float multiplier = __fdiv_rn(448.0F, amax);
    const uint32_t bits = __float_as_uint(stored);
    const uint32_t exponent = (bits >> 23) + ((bits & 0x7fffff) != 0 ? 1U : 0U);
    stored = power_of_2 ? __uint_as_float(exponent << 23) : stored;
    // The inverse of a power of two from 2^-22 to 2^120.
    multiplier = power_of_2 ? __uint_as_float((kTwiceBias - exponent) << 23) : multiplier;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const v = values[t] + 4 * i;
      const uint32_t word = e4m3_pair(__fmul_rn(v[0], multiplier), __fmul_rn(v[1], multiplier)) |
                            e4m3_pair(__fmul_rn(v[2], multiplier), __fmul_rn(v[3], multiplier))
                                << 16;
      words[i] = is_finite ? word : kNans;
    }
    made.rows[t] = {words[0], words[1], words[2], words[3]};
    made.scales[t] = is_finite ? stored : 1.0F;
  }
  return made;
}

}  // namespace braid::moe::gpu
