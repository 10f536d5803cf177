// 32-bit words full of elements: what a load brings and a store takes. unpack() and pack() turn
// `kWords` of them into accumulators and back, with the GPU's conversion instructions where they
// round as the numbers contract says (NaN is made canonical here: fp16 and bf16 come as 0x7fff).
#pragma once

#include "coll/reduce/elements.cuh"

namespace braid::coll::device {

/// Elements in kWords words.
template <typename R, int kWords>
inline constexpr int kElementsIn = 4 * kWords / R::kBytes;

#if defined(__CUDA_ARCH__)
/// Conversions of a whole word; kHas says on which architectures.
template <typename F>
struct WordFormat {
  static constexpr bool kHas = false;
};

/// Two halves that may each be 0x7fff, the NaN of the conversion instructions, and are never
/// 0xffff: adding one to each half carries into the sign of a NaN alone.
__device__ __forceinline__ uint32_t canonical_halves(uint32_t word, uint32_t excess) {
  const uint32_t is_nan = ((word + 0x00010001) & ~word & 0x80008000) >> 15;
  return word - is_nan * excess;
}

template <>
struct WordFormat<Bf16> {
  static constexpr bool kHas = true;
  static __device__ __forceinline__ void widen(uint32_t word, float* out) {
    out[0] = float_of(word << 16);
    out[1] = float_of(word & 0xffff0000);
  }
  static __device__ __forceinline__ uint32_t round(const float* in) {
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(in[1]), "f"(in[0]));
    return canonical_halves(word, 0x7fff - Bf16::kNan);
  }
};

__device__ __forceinline__ void widen_halves(uint32_t word, float* out) {
  asm("{\n.reg .f16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\n"
      "cvt.f32.f16 %1, high;\n}"
      : "=f"(out[0]), "=f"(out[1])
      : "r"(word));
}

template <>
struct WordFormat<Fp16> {
  static constexpr bool kHas = true;
  static __device__ __forceinline__ void widen(uint32_t word, float* out) {
    widen_halves(word, out);
  }
  static __device__ __forceinline__ uint32_t round(const float* in) {
    uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(in[1]), "f"(in[0]));
    return canonical_halves(word, 0x7fff - Fp16::kNan);
  }
};

#if __CUDA_ARCH__ >= 890
// fp8 goes to fp32 by way of fp16, which holds all of its numbers.
#define BRAID_WORD_FORMAT(Format, name)                                              \
  template <>                                                                        \
  struct WordFormat<Format> {                                                        \
    static constexpr bool kHas = true;                                               \
    static __device__ __forceinline__ void widen(uint32_t word, float* out) {        \
      uint32_t low, high;                                                            \
      asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.rn.f16x2." name    \
          " %0, low;\ncvt.rn.f16x2." name " %1, high;\n}"                            \
          : "=r"(low), "=r"(high)                                                    \
          : "r"(word));                                                              \
      widen_halves(low, out);                                                        \
      widen_halves(high, out + 2);                                                   \
    }                                                                                \
    static __device__ __forceinline__ uint32_t round(const float* in) {              \
      uint32_t word;                                                                 \
      asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite." name                          \
          ".f32 low, %2, %1;\n"                                                      \
          "cvt.rn.satfinite." name ".f32 high, %4, %3;\nmov.b32 %0, {low, high};\n}" \
          : "=r"(word)                                                               \
          : "f"(in[0]), "f"(in[1]), "f"(in[2]), "f"(in[3]));                         \
      return word;                                                                   \
    }                                                                                \
  };
BRAID_WORD_FORMAT(E4m3, "e4m3x2")
BRAID_WORD_FORMAT(E5m2, "e5m2x2")
#undef BRAID_WORD_FORMAT
#endif

/// True when R is arithmetic on floats that have such conversions.
template <typename R>
inline constexpr bool kConvertsWords = false;
template <typename F, Op kOp>
inline constexpr bool kConvertsWords<FloatReduction<F, kOp>> = WordFormat<F>::kHas;

/// Minima and maxima of both halves of a word at once, in OrderReduction's order: these
/// instructions prefer numbers to NaN and tell the zeros apart. Element by element, an all-reduce
/// of 256 MiB on two H200 had 1,068 us instead of 740. Accumulators are words then, the first of a
/// batch's; the NaN of two NaN is 0x7fff.
template <typename R>
struct HalfPicks {
  static constexpr bool kHas = false;
};
#define BRAID_HALF_PICKS(Format, kOp, instruction)                            \
  template <>                                                                 \
  struct HalfPicks<OrderReduction<Format, kOp>> {                             \
    static constexpr bool kHas = true;                                        \
    static __device__ __forceinline__ uint32_t pick(uint32_t a, uint32_t b) { \
      uint32_t word;                                                          \
      asm(instruction " %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));          \
      return word;                                                            \
    }                                                                         \
    static __device__ __forceinline__ uint32_t store(uint32_t word) {         \
      return canonical_halves(word, 0x7fff - Format::kNan);                   \
    }                                                                         \
  };
BRAID_HALF_PICKS(Bf16, Op::kMax, "max.bf16x2")
BRAID_HALF_PICKS(Bf16, Op::kMin, "min.bf16x2")
BRAID_HALF_PICKS(Fp16, Op::kMax, "max.f16x2")
BRAID_HALF_PICKS(Fp16, Op::kMin, "min.f16x2")
#undef BRAID_HALF_PICKS
template <typename R>
inline constexpr bool kPicksHalves = HalfPicks<R>::kHas;
#else
template <typename R>
inline constexpr bool kConvertsWords = false;
template <typename F>
struct WordFormat;
template <typename R>
inline constexpr bool kPicksHalves = false;
template <typename R>
struct HalfPicks;
#endif

template <typename R>
BRAID_HD void unpack_word(uint32_t word, typename R::Acc* acc) {
  if constexpr (kConvertsWords<R>) {
    WordFormat<typename R::Format>::widen(word, acc);
  } else {
    for (int k = 0; k < 4 / R::kBytes; ++k) {
      uint32_t bits = word >> (8 * R::kBytes * k);
      if constexpr (R::kBytes < 4) bits &= (1u << (8 * R::kBytes)) - 1;
      acc[k] = R::load(bits);
    }
  }
}

template <typename R>
BRAID_HD uint32_t pack_word(const typename R::Acc* acc, int n) {
  uint32_t word = 0;
  if constexpr (kConvertsWords<R>) {
    float done[4 / R::kBytes];
    for (int k = 0; k < 4 / R::kBytes; ++k) done[k] = R::finish(acc[k], n);
    word = WordFormat<typename R::Format>::round(done);
  } else {
    for (int k = 0; k < 4 / R::kBytes; ++k) word |= R::store(acc[k], n) << (8 * R::kBytes * k);
  }
  return word;
}

template <typename R, int kWords>
BRAID_HD void unpack(const uint32_t* words, typename R::Acc* acc) {
  if constexpr (kPicksHalves<R>) {
    for (int k = 0; k < kWords; ++k) acc[k] = static_cast<int32_t>(words[k]);
  } else if constexpr (R::kBytes == 8) {
    for (int k = 0; k < kWords / 2; ++k)
      acc[k] = R::load(words[2 * k] | static_cast<uint64_t>(words[2 * k + 1]) << 32);
  } else {
    for (int k = 0; k < kWords; ++k) unpack_word<R>(words[k], acc + k * (4 / R::kBytes));
  }
}

template <typename R, int kWords>
BRAID_HD void pack(const typename R::Acc* acc, int n, uint32_t* words) {
  if constexpr (kPicksHalves<R>) {
    for (int k = 0; k < kWords; ++k) words[k] = HalfPicks<R>::store(acc[k]);
  } else if constexpr (R::kBytes == 8) {
    for (int k = 0; k < kWords / 2; ++k) {
      const uint64_t bits = R::store(acc[k], n);
      words[2 * k] = static_cast<uint32_t>(bits);
      words[2 * k + 1] = static_cast<uint32_t>(bits >> 32);
    }
  } else {
    for (int k = 0; k < kWords; ++k) words[k] = pack_word<R>(acc + k * (4 / R::kBytes), n);
  }
}

/// acc = op(acc, words), element by element.
template <typename R, int kWords>
BRAID_HD void combine(const uint32_t* words, typename R::Acc* acc) {
  if constexpr (kPicksHalves<R>) {
    for (int k = 0; k < kWords; ++k)
      acc[k] = static_cast<int32_t>(HalfPicks<R>::pick(acc[k], words[k]));
  } else {
    typename R::Acc operand[kElementsIn<R, kWords>];
    unpack<R, kWords>(words, operand);
    for (int k = 0; k < kElementsIn<R, kWords>; ++k) acc[k] = R::apply(acc[k], operand[k]);
  }
}

}  // namespace braid::coll::device
