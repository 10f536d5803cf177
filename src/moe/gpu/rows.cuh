// Rows of 16-byte vectors: a warp moves one, with several loads of every lane under way. What peers
// have stored is read with ordinary loads that leave no line in the L1 (never by the read-only way),
// behind an acquire.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "moe/gpu/phase.cuh"

namespace braid::moe::gpu {

inline constexpr uint64_t kVectorBytes = 16;
inline constexpr int kInFlight = 8;  // vectors of a lane

__device__ __forceinline__ uint4 load_vector(const std::byte* at) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at)
               : "memory");
  return v;
}
__device__ __forceinline__ void store_vector(std::byte* at, const uint4& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

/// By a warp: vectors begin to end of a row, kInFlight of each lane at most. each_target(put) calls
/// put(std::byte*) for every place that the row goes to.
template <typename EachTarget>
__device__ __forceinline__ void copy_vectors(const std::byte* from, uint32_t begin, uint32_t end,
                                             const EachTarget& each_target) {
  uint4 v[kInFlight];
  const uint32_t first = begin + static_cast<uint32_t>(lane_of_thread());
#pragma unroll
  for (uint32_t i = 0; i < kInFlight; ++i)
    if (first + 32 * i < end) v[i] = load_vector(from + (first + 32 * i) * kVectorBytes);
  each_target([&](std::byte* to) {
#pragma unroll
    for (uint32_t i = 0; i < kInFlight; ++i)
      if (first + 32 * i < end) store_vector(to + (first + 32 * i) * kVectorBytes, v[i]);
  });
}
template <typename EachTarget>
__device__ __forceinline__ void copy_row(const std::byte* from, uint64_t bytes,
                                         const EachTarget& each_target) {
  const auto vectors = static_cast<uint32_t>(bytes / kVectorBytes);
  for (uint32_t begin = 0; begin < vectors; begin += 32 * kInFlight)
    copy_vectors(from, begin, min(vectors, begin + 32 * kInFlight), each_target);
}
/// By a warp: `bytes`, a multiple of 4, of any alignment of 4.
__device__ __forceinline__ void copy_words(std::byte* to, const std::byte* from, uint64_t bytes) {
  for (uint64_t at = 4 * static_cast<uint64_t>(lane_of_thread()); at < bytes; at += 128)
    *reinterpret_cast<uint32_t*>(to + at) = seen(reinterpret_cast<const uint32_t*>(from + at));
}

// ---- elements: what formats.h does, by the GPU's own conversions, which round alike ----

struct Bf16 {
  static constexpr int kBytes = 2;
  static __device__ __forceinline__ void widen(const uint4& v, float* out) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = __uint_as_float(words[i] << 16);
      out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
    }
  }
  static __device__ __forceinline__ uint4 narrow(const float* in) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = __bfloat16_as_ushort(__float2bfloat16_rn(in[2 * i]));
      const uint32_t high = __bfloat16_as_ushort(__float2bfloat16_rn(in[2 * i + 1]));
      words[i] = low | high << 16;
    }
    return {words[0], words[1], words[2], words[3]};
  }
};

struct Fp16 {
  static constexpr int kBytes = 2;
  static __device__ __forceinline__ void widen(const uint4& v, float* out) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = __half2float(__ushort_as_half(static_cast<uint16_t>(words[i])));
      out[2 * i + 1] = __half2float(__ushort_as_half(static_cast<uint16_t>(words[i] >> 16)));
    }
  }
  static __device__ __forceinline__ uint4 narrow(const float* in) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = __half_as_ushort(__float2half_rn(in[2 * i]));
      const uint32_t high = __half_as_ushort(__float2half_rn(in[2 * i + 1]));
      words[i] = low | high << 16;
    }
    return {words[0], words[1], words[2], words[3]};
  }
};

struct Fp32 {
  static constexpr int kBytes = 4;
  static __device__ __forceinline__ void widen(const uint4& v, float* out) {
    out[0] = __uint_as_float(v.x);
    out[1] = __uint_as_float(v.y);
    out[2] = __uint_as_float(v.z);
    out[3] = __uint_as_float(v.w);
  }
  static __device__ __forceinline__ uint4 narrow(const float* in) {
    return {__float_as_uint(in[0]), __float_as_uint(in[1]), __float_as_uint(in[2]),
            __float_as_uint(in[3])};
  }
};

/// Elements of a vector.
template <typename Type>
inline constexpr int kLanes = static_cast<int>(kVectorBytes) / Type::kBytes;

}  // namespace braid::moe::gpu
