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

/// A piece of a row, on its way through the registers of a warp: kMost vectors of each lane at most.
template <int kMost = kInFlight>
class Piece {
 public:
  static constexpr uint32_t kVectors = 32 * kMost;
  /// Asks for vectors begin to end; they are waited for where they are stored.
  __device__ __forceinline__ void load(const std::byte* from, uint32_t begin, uint32_t end) {
    first_ = begin + static_cast<uint32_t>(lane_of_thread());
    end_ = end;
#pragma unroll
    for (uint32_t i = 0; i < kMost; ++i)
      v_[i] = first_ + 32 * i < end_
                  ? load_vector(from + (first_ + 32 * i) * kVectorBytes)
                  : uint4{};  // else it is kept from piece to piece, in registers
  }
  __device__ __forceinline__ void store(std::byte* to) const {
#pragma unroll
    for (uint32_t i = 0; i < kMost; ++i)
      if (first_ + 32 * i < end_) store_vector(to + (first_ + 32 * i) * kVectorBytes, v_[i]);
  }
  /// each(word's number, word): by every lane, of the 4-byte words of its first vector.
  template <typename Each>
  __device__ __forceinline__ void each_word_of_first(const Each& each) const {
    if (first_ >= end_) return;
    each(4 * first_, v_[0].x), each(4 * first_ + 1, v_[0].y);
    each(4 * first_ + 2, v_[0].z), each(4 * first_ + 3, v_[0].w);
  }

 private:
  uint32_t first_ = 0, end_ = 0;
  uint4 v_[kMost];
};

/// How a row of `vectors` is cut into pieces of about one size.
struct Cut {
  uint32_t vectors, of_piece;
  int32_t pieces;
  template <int kMost = kInFlight>
  static __device__ __forceinline__ Cut of(uint64_t bytes) {
    constexpr uint32_t kVectors = Piece<kMost>::kVectors;
    const auto vectors = static_cast<uint32_t>((bytes + kVectorBytes - 1) / kVectorBytes);
    const uint32_t pieces = (vectors + kVectors - 1) / kVectors;
    const uint32_t lines = (vectors + 31) / 32;
    return {vectors, pieces == 0 ? kVectors : (lines + pieces - 1) / pieces * 32,
            static_cast<int32_t>(pieces)};
  }
  __device__ __forceinline__ uint32_t begin(int piece) const {
    return static_cast<uint32_t>(piece) * of_piece;
  }
  __device__ __forceinline__ uint32_t end(int piece) const {
    return min(vectors, begin(piece) + of_piece);
  }
};

/// By a warp: vectors begin to end of a row, a piece at most. each_target(put) calls
/// put(std::byte*) for every place that the row goes to.
template <typename EachTarget>
__device__ __forceinline__ void copy_vectors(const std::byte* from, uint32_t begin, uint32_t end,
                                             const EachTarget& each_target) {
  Piece<> piece;
  piece.load(from, begin, end);
  each_target([&](std::byte* to) { piece.store(to); });
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
