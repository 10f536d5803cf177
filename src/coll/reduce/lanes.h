// What the loops of kernels_body.h work on: for each element type a format that loads elements into
// an accumulator and stores a result, and the operators. Compiled per instruction set, as formats.h
// is.
//
// A format has     Acc, the accumulator; kBytes per element; kWide, the elements that one Acc holds;
//                  load(p) -> Acc and store(p, Acc), p of any alignment.
// An operator has  apply(a, b), in rank order; finish(a, n), once before the store, n being the
//                  number of operands: of the sources, or of what went into them.
//
// An Acc of integers, fp32 and fp64 is one element, and the compiler makes vectors of the loop. The
// narrow floats have registers of them as Acc: no compiler finds the F16C instructions by itself,
// and gcc 12 leaves the other conversions scalar.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coll/reduce/formats.h"

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

namespace braid::coll::BRAID_REDUCE_ISA {

using Bytes = unsigned char;

template <typename T>
inline T load_as(const Bytes* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof(T));
  return value;
}
template <typename T>
inline void store_as(Bytes* p, T value) {
  __builtin_memcpy(p, &value, sizeof(T));
}

/// Every NaN that arithmetic makes becomes this one. Which of two NaN operands an addition hands on
/// depends on the order in which the compiler put them, so that without this the bits would differ
/// between builds.
inline float canonical(float value) {
  const uint32_t bits = bits_of(value);
  return float_of(is_nan(bits) ? kFloatNan : bits);
}
inline double canonical(double value) {
  const int64_t bits = __builtin_bit_cast(int64_t, value);
  const bool nan = (bits & 0x7fffffffffffffff) > 0x7ff0000000000000;
  return __builtin_bit_cast(double, nan ? int64_t{0x7ff8000000000000} : bits);
}

/// fp32 and fp64.
template <typename T>
struct Plain {
  using Acc = T;
  static constexpr size_t kBytes = sizeof(T);
  static constexpr uint64_t kWide = 1;
  static Acc load(const Bytes* p) { return load_as<T>(p); }
  static void store(Bytes* p, Acc acc) { store_as(p, canonical(acc)); }
};

/// The parts of a register of 32-bit words that each hold two or four narrow floats: part k has the
/// k-th float of every word, so that elements are neither unpacked nor packed, only shifted to
/// their place and back.
template <size_t kParts>
struct Parts {
  FloatLanes part[kParts];

  friend Parts operator+(const Parts& a, const Parts& b) {
    Parts out;
    for (size_t k = 0; k < kParts; ++k) out.part[k] = a.part[k] + b.part[k];
    return out;
  }
  friend Parts operator*(const Parts& a, const Parts& b) {
    Parts out;
    for (size_t k = 0; k < kParts; ++k) out.part[k] = a.part[k] * b.part[k];
    return out;
  }
  friend Parts operator/(const Parts& a, float divisor) {
    Parts out;
    for (size_t k = 0; k < kParts; ++k) out.part[k] = a.part[k] / divisor;
    return out;
  }
};

/// The formats of formats.h, of `kElementBytes` each, accumulated in fp32.
template <typename Format, size_t kElementBytes>
struct Narrow {
  static constexpr size_t kBytes = kElementBytes;
  static constexpr size_t kParts = 4 / kBytes;
  static constexpr uint64_t kWide = sizeof(UintLanes) / kBytes;
  using Acc = Parts<kParts>;

  static Acc load(const Bytes* p) {
    const auto words = load_as<UintLanes>(p);
    Acc acc;
    for (size_t k = 0; k < kParts; ++k)
      acc.part[k] = float_of(Format::widen(words >> (8 * kBytes * k)));
    return acc;
  }
  static void store(Bytes* p, const Acc& acc) {
    UintLanes words = {};
    for (size_t k = 0; k < kParts; ++k) {
      const UintLanes bits = bits_of(acc.part[k]);
      const UintLanes rounded =
          select(is_nan(bits), constant<UintLanes>(Format::kNan), Format::round(bits));
      words |= rounded << (8 * kBytes * k);
    }
    store_as(p, words);
  }
};

#if defined(__AVX512F__)
struct Half {
  using Acc = __m512;
  static constexpr size_t kBytes = 2;
  static constexpr uint64_t kWide = 16;
  static constexpr __mmask16 kAll = 0xffff;
  // The zero-masked forms, all lanes on: the plain ones read an undefined register, of which gcc 12
  // warns.
  static Acc load(const Bytes* p) { return _mm512_maskz_cvtph_ps(kAll, load_as<__m256i>(p)); }
  static void store(Bytes* p, Acc acc) {
    const __mmask16 nan = _mm512_cmp_ps_mask(acc, acc, _CMP_UNORD_Q);
    const Acc clean = _mm512_mask_blend_ps(nan, acc, _mm512_set1_ps(float_of(kFloatNan)));
    store_as(p, _mm512_maskz_cvtps_ph(kAll, clean, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};
#elif defined(__F16C__)
struct Half {
  using Acc = __m256;
  static constexpr size_t kBytes = 2;
  static constexpr uint64_t kWide = 8;
  static Acc load(const Bytes* p) { return _mm256_cvtph_ps(load_as<__m128i>(p)); }
  static void store(Bytes* p, Acc acc) {
    const Acc nan = _mm256_cmp_ps(acc, acc, _CMP_UNORD_Q);
    const Acc clean = _mm256_blendv_ps(acc, _mm256_set1_ps(float_of(kFloatNan)), nan);
    store_as(p, _mm256_cvtps_ph(clean, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};
#else
using Half = Narrow<Fp16, 2>;
#endif

/// Integers. Sums and products use the unsigned type, because they wrap.
template <typename T>
struct Whole {
  using Acc = T;
  static constexpr size_t kBytes = sizeof(T);
  static constexpr uint64_t kWide = 1;
  static Acc load(const Bytes* p) { return load_as<T>(p); }
  static void store(Bytes* p, Acc acc) { store_as(p, acc); }
};

/// A float as a signed integer with the order of IEEE totalOrder, so that min and max never round,
/// see -0 < +0, and return the bits of an operand. NaN loads as `kNanKey`, the end of the range
/// that the operator never prefers; that end is itself the key of a NaN, so a result that equals it
/// says that all operands were NaN.
template <typename T, T kInf, T kNan, T kNanKey>
struct Ordered {
  using Acc = T;
  static constexpr size_t kBytes = sizeof(T);
  static constexpr uint64_t kWide = 1;
  static constexpr int kTop = 8 * static_cast<int>(sizeof(T)) - 1;
  static constexpr T kMagnitude = static_cast<T>(~(uint64_t{1} << kTop));

  static Acc load(const Bytes* p) {
    const T bits = load_as<T>(p);
    const T key = static_cast<T>(bits ^ ((bits >> kTop) & kMagnitude));
    return static_cast<T>(bits & kMagnitude) > kInf ? kNanKey : key;
  }
  static void store(Bytes* p, Acc key) {
    const T bits = static_cast<T>(key ^ ((key >> kTop) & kMagnitude));
    store_as(p, key == kNanKey ? kNan : bits);
  }
};

struct Sum {
  template <typename A>
  static A apply(A a, A b) {
    return static_cast<A>(a + b);
  }
  template <typename A>
  static A finish(A a, size_t) {
    return a;
  }
};

struct Prod : Sum {
  template <typename A>
  static A apply(A a, A b) {
    return static_cast<A>(a * b);
  }
  // uint16_t would multiply as int, which overflows.
  static uint16_t apply(uint16_t a, uint16_t b) { return static_cast<uint16_t>(uint32_t{a} * b); }
};

struct Min : Sum {
  template <typename A>
  static A apply(A a, A b) {
    return b < a ? b : a;
  }
};

struct Max : Sum {
  template <typename A>
  static A apply(A a, A b) {
    return a < b ? b : a;
  }
};

/// Avg of floats: one division in the accumulator's type.
struct Avg : Sum {
  template <size_t kParts>
  static Parts<kParts> finish(const Parts<kParts>& a, size_t n) {
    return a / static_cast<float>(n);
  }
  static float finish(float a, size_t n) { return a / static_cast<float>(n); }
  static double finish(double a, size_t n) { return a / static_cast<double>(n); }
#if defined(__AVX512F__)
  static __m512 finish(__m512 a, size_t n) { return a / _mm512_set1_ps(static_cast<float>(n)); }
#elif defined(__F16C__)
  static __m256 finish(__m256 a, size_t n) { return a / _mm256_set1_ps(static_cast<float>(n)); }
#endif
};

/// Avg of integers of type T, on the wrapped sum. Up to 32 bits the division is done in floating
/// point, of which there are vectors, and is still exact: a quotient that is not whole lies at
/// least 1/n below the next whole number k, so relatively by 1/(n k) >= 2^-32 at 32 bits (2^-16 at
/// 16), and the rounding of fp64 (fp32) cannot reach it.
template <typename T>
struct WholeAvg : Sum {
  template <typename A>
  static A finish(A a, size_t n) {
    const T sum = static_cast<T>(a);
    if constexpr (sizeof(T) == 8) {
      return static_cast<A>(sum / static_cast<T>(n));
    } else if constexpr (sizeof(T) == 4) {
      return static_cast<A>(
          static_cast<int64_t>(static_cast<double>(sum) / static_cast<double>(n)));
    } else {
      return static_cast<A>(static_cast<int32_t>(static_cast<float>(sum) / static_cast<float>(n)));
    }
  }
};

}  // namespace braid::coll::BRAID_REDUCE_ISA
