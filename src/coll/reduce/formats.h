// Bit formats: how the small floats turn into fp32 and back, written without branches and for one
// number (uint32_t, float) as well as for a register of them (UintLanes, FloatLanes). Round to
// nearest even; subnormals are kept on both ways.
//
// NaN      To fp32: sign and payload kept (payload in the top fraction bits), made quiet, as F16C
//          does; e4m3 has one payload. To fp16 and bf16: sign kept, payload cut to its top bits,
//          made quiet. To fp8: 0x7f, sign dropped, as the conversion instructions of CUDA devices
//          since sm_89 do.
// Overflow fp16 and bf16 go to infinity; fp8 saturates to the largest finite value, infinity
//          included (SATFINITE).
//
// Everything here is compiled with several instruction sets and lives in the namespace of the one
// (see kernels.h). So nothing of the standard library is called: its inline functions would be
// shared between the builds.
#pragma once

#include <cstdint>

#ifndef BRAID_REDUCE_ISA
#define BRAID_REDUCE_ISA generic
#endif

namespace braid::coll::BRAID_REDUCE_ISA {

// The widest register of the build; 16 bytes is SSE2's and NEON's.
#if defined(__AVX512F__)
#define BRAID_LANE_BYTES 64
#elif defined(__AVX2__)
#define BRAID_LANE_BYTES 32
#else
#define BRAID_LANE_BYTES 16
#endif
using UintLanes [[gnu::vector_size(BRAID_LANE_BYTES)]] = uint32_t;
using IntLanes [[gnu::vector_size(BRAID_LANE_BYTES)]] = int32_t;
using FloatLanes [[gnu::vector_size(BRAID_LANE_BYTES)]] = float;

inline uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
inline float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline UintLanes bits_of(FloatLanes value) { return __builtin_bit_cast(UintLanes, value); }
inline FloatLanes float_of(UintLanes bits) { return __builtin_bit_cast(FloatLanes, bits); }

// Comparisons are signed: both sides are below 2^31, and SSE2 and AVX2 only compare signed lanes.
inline bool is_less(uint32_t a, uint32_t b) {
  return static_cast<int32_t>(a) < static_cast<int32_t>(b);
}
inline IntLanes is_less(UintLanes a, UintLanes b) {
  return __builtin_bit_cast(IntLanes, a) < __builtin_bit_cast(IntLanes, b);
}
inline uint32_t select(bool condition, uint32_t yes, uint32_t no) { return condition ? yes : no; }
inline UintLanes select(IntLanes condition, UintLanes yes, UintLanes no) {
  return condition ? yes : no;
}

/// `value` in every lane.
template <typename U>
U constant(uint32_t value) {
  return U{} + value;
}

inline constexpr uint32_t kFloatSign = 0x80000000;
inline constexpr uint32_t kFloatInf = 0x7f800000;
inline constexpr uint32_t kFloatQuiet = 0x00400000;
inline constexpr uint32_t kFloatNan = 0x7fc00000;

template <typename U>
auto is_nan(U float_bits) {
  return is_less(constant<U>(kFloatInf), float_bits & ~kFloatSign);
}

/// A float of 1 + exponent + fraction bits. `kHasInf` false means that the top exponent holds
/// numbers and that only the all-ones pattern is NaN (e4m3fn). Numbers above `kLargest` become it:
/// infinity, or the largest finite number.
template <int kExponentBits, int kFractionBits, bool kHasInf, uint32_t kLargest, uint32_t kNanBits>
struct SmallFloat {
  static constexpr uint32_t kNan = kNanBits;  // the canonical one
  static constexpr int kBits = 1 + kExponentBits + kFractionBits;
  static constexpr uint32_t kMagnitude = (1u << (kBits - 1)) - 1;
  static constexpr uint32_t kInf = ((1u << kExponentBits) - 1)
                                   << kFractionBits;  // or where it would be
  static constexpr int kShift = 23 - kFractionBits;
  static constexpr uint32_t kRebias = (127u - ((1u << (kExponentBits - 1)) - 1)) << 23;
  // The smallest normal as fp32, and the power of two whose fp32 unit is this format's smallest
  // subnormal.
  static constexpr uint32_t kMinNormal = kRebias + (1u << 23);
  static constexpr uint32_t kSubnormalMagic = kMinNormal + (static_cast<uint32_t>(kShift) << 23);

  /// fp32 bits of a number; some NaN, maybe a signalling one, for NaN. Bits above the element's do
  /// not matter.
  template <typename U>
  static U widen(U bits) {
    const U magnitude = bits & kMagnitude;
    const U sign = (bits & (kMagnitude + 1)) << (32 - kBits);
    const U shifted = magnitude << kShift;
    // Subnormal: read the fraction as if it had the leading one of the smallest normal, then take
    // that one away.
    const U subnormal = bits_of(float_of(shifted + kMinNormal) - float_of(constant<U>(kMinNormal)));
    const U number =
        select(is_less(magnitude, constant<U>(1u << kFractionBits)), subnormal, shifted + kRebias);
    // NaN and infinity of the format, or of e4m3fn its single NaN.
    const U special = shifted | (kHasInf ? kFloatInf : kFloatNan);
    return select(is_less(magnitude, constant<U>(kHasInf ? kInf : kMagnitude)), number, special) |
           sign;
  }

  /// Rounds a number given as fp32 bits; nonsense for NaN.
  template <typename U>
  static U round(U bits) {
    const U magnitude = bits & ~kFloatSign;
    const U sign = (bits & kFloatSign) >> (32 - kBits);
    const U odd = (magnitude >> kShift) & 1;
    const U normal = (magnitude - kRebias + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
    const U largest = constant<U>(kLargest);
    const U capped = select(is_less(largest, normal), largest, normal);
    // Subnormal: the adder rounds to this format's unit when the other operand's unit is that one.
    const U magic = constant<U>(kSubnormalMagic);
    const U subnormal = bits_of(float_of(magnitude) + float_of(magic)) - magic;
    return select(is_less(magnitude, constant<U>(kMinNormal)), subnormal, capped) | sign;
  }

  static float to_float(uint32_t bits) {
    const uint32_t wide = widen(bits);
    return float_of(is_nan(wide) ? (wide | kFloatQuiet) : wide);
  }
  static uint32_t from_float(float value) {
    const uint32_t bits = bits_of(value);
    if (!is_nan(bits)) return round(bits);
    if constexpr (kBits == 8) return kNan;
    return kNan | ((bits >> kShift) & ((1u << kFractionBits) - 1)) |
           ((bits & kFloatSign) >> (32 - kBits));
  }
};

using Fp16 = SmallFloat<5, 10, true, 0x7c00, 0x7e00>;
using E4m3 = SmallFloat<4, 3, false, 0x7e, 0x7f>;  // largest: 448
using E5m2 = SmallFloat<5, 2, true, 0x7b, 0x7f>;   // largest: 57344

/// The upper half of an fp32, so that its subnormals and exponents need no care. Functions as in
/// SmallFloat.
struct Bf16 {
  static constexpr uint32_t kNan = 0x7fc0;
  template <typename U>
  static U widen(U bits) {
    return bits << 16;
  }
  template <typename U>
  static U round(U bits) {
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  }
  static float to_float(uint32_t bits) {
    const uint32_t wide = widen(bits);
    return float_of(is_nan(wide) ? (wide | kFloatQuiet) : wide);
  }
  static uint32_t from_float(float value) {
    const uint32_t bits = bits_of(value);
    return is_nan(bits) ? (bits | kFloatQuiet) >> 16 : round(bits);
  }
};

}  // namespace braid::coll::BRAID_REDUCE_ISA
