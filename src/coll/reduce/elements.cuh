// Elements on the device: what formats.h and lanes.h say for the processor, said again for one
// element and for the 32-bit words that hold it, in code that the host's compiler can read too.
// tests/coll/reduce/elements_test.cc compares it with reduce() there, bit for bit; where the GPU
// has conversion instructions of its own, tests/device/reduce_check.cc does so on a GPU.
//
// Not one product may be contracted with a sum, nothing is flushed to zero and avg divides as IEEE
// says: the arithmetic is written with intrinsics that the compiler leaves alone.
//
// A format    has kBytes; floats have kInf and kNan bits, widen(bits) -> float (bits above the
//             element's do not matter; any NaN for NaN) and round(float) -> bits.
// A Reduction has kBytes, Bits, Acc, load(bits), apply(a, b) in rank order, and store(acc, n),
//             once, n being the number of sources, two or more: one source is copied, not reduced.
#pragma once

#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)
#define BRAID_HD __host__ __device__ __forceinline__
#else
#define BRAID_HD inline
#endif

namespace braid::coll::device {

BRAID_HD uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
BRAID_HD float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

#if defined(__CUDA_ARCH__)
BRAID_HD float add(float a, float b) { return __fadd_rn(a, b); }
BRAID_HD double add(double a, double b) { return __dadd_rn(a, b); }
BRAID_HD float multiply(float a, float b) { return __fmul_rn(a, b); }
BRAID_HD double multiply(double a, double b) { return __dmul_rn(a, b); }
BRAID_HD float divide(float a, float b) { return __fdiv_rn(a, b); }
BRAID_HD double divide(double a, double b) { return __ddiv_rn(a, b); }
#else
BRAID_HD float add(float a, float b) { return a + b; }
BRAID_HD double add(double a, double b) { return a + b; }
BRAID_HD float multiply(float a, float b) { return a * b; }
BRAID_HD double multiply(double a, double b) { return a * b; }
BRAID_HD float divide(float a, float b) { return a / b; }
BRAID_HD double divide(double a, double b) { return a / b; }
#endif

/// Unsigned words for elements of `kBytes`; 8 and 16 bits are computed in 32.
template <int kBytes>
using BitsFor = std::conditional_t<kBytes == 8, uint64_t, uint32_t>;
template <int kBytes>
using SignedFor = std::conditional_t<kBytes == 8, int64_t, int32_t>;

struct Fp32 {
  static constexpr int kBytes = 4;
  static constexpr uint32_t kInf = 0x7f800000;
  static constexpr uint32_t kNan = 0x7fc00000;
  static BRAID_HD float widen(uint32_t bits) { return float_of(bits); }
  static BRAID_HD uint32_t round(float value) { return value != value ? kNan : bits_of(value); }
};

struct Fp64 {
  static constexpr int kBytes = 8;
  static constexpr uint64_t kInf = 0x7ff0000000000000;
  static constexpr uint64_t kNan = 0x7ff8000000000000;
  static BRAID_HD double widen(uint64_t bits) { return __builtin_bit_cast(double, bits); }
  static BRAID_HD uint64_t round(double value) {
    return value != value ? kNan : __builtin_bit_cast(uint64_t, value);
  }
};

struct Bf16 {
  static constexpr int kBytes = 2;
  static constexpr uint32_t kInf = 0x7f80;
  static constexpr uint32_t kNan = 0x7fc0;
  static BRAID_HD float widen(uint32_t bits) { return float_of(bits << 16); }
  static BRAID_HD uint32_t round(float value) {
    const uint32_t bits = bits_of(value);
    return value != value ? kNan : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  }
};

/// As formats.h has it, with its reasons.
template <int kExponentBits, int kFractionBits, bool kHasInf, uint32_t kLargest, uint32_t kNanBits,
          uint32_t kInfBits>
struct SmallFloat {
  static constexpr int kBits = 1 + kExponentBits + kFractionBits;
  static constexpr int kBytes = kBits / 8;
  static constexpr uint32_t kInf = kInfBits;  // NaN lies above: e4m3's largest number
  static constexpr uint32_t kNan = kNanBits;
  static constexpr uint32_t kMagnitude = (1u << (kBits - 1)) - 1;
  static constexpr int kShift = 23 - kFractionBits;
  static constexpr uint32_t kRebias = (127u - ((1u << (kExponentBits - 1)) - 1)) << 23;
  static constexpr uint32_t kMinNormal = kRebias + (1u << 23);
  static constexpr uint32_t kSubnormalMagic = kMinNormal + (static_cast<uint32_t>(kShift) << 23);

  static BRAID_HD float widen(uint32_t bits) {
    const uint32_t magnitude = bits & kMagnitude;
    const uint32_t sign = (bits & (kMagnitude + 1)) << (32 - kBits);
    const uint32_t shifted = magnitude << kShift;
    uint32_t wide = shifted + kRebias;
    if (magnitude < (1u << kFractionBits))
      wide = bits_of(add(float_of(shifted + kMinNormal), -float_of(kMinNormal)));
    if (magnitude >= (kHasInf ? kInf : kMagnitude))
      wide = shifted | (kHasInf ? Fp32::kInf : Fp32::kNan);
    return float_of(wide | sign);
  }

  static BRAID_HD uint32_t round(float value) {
    if (value != value) return kNan;
    const uint32_t magnitude = bits_of(value) & 0x7fffffff;
    const uint32_t sign = (bits_of(value) & 0x80000000) >> (32 - kBits);
    if (magnitude < kMinNormal)
      return (bits_of(add(float_of(magnitude), float_of(kSubnormalMagic))) - kSubnormalMagic) |
             sign;
    const uint32_t odd = (magnitude >> kShift) & 1;
    const uint32_t normal = (magnitude - kRebias + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
    return (normal < kLargest ? normal : kLargest) | sign;
  }
};

using Fp16 = SmallFloat<5, 10, true, 0x7c00, 0x7e00, 0x7c00>;
using E4m3 = SmallFloat<4, 3, false, 0x7e, 0x7f, 0x7e>;
using E5m2 = SmallFloat<5, 2, true, 0x7b, 0x7f, 0x7c>;

template <typename T>
struct Whole {
  static constexpr int kBytes = sizeof(T);
  using Element = T;
};

template <typename F>
inline constexpr bool kIsWhole = false;
template <typename T>
inline constexpr bool kIsWhole<Whole<T>> = true;

enum class Op { kSum, kProd, kMax, kMin, kAvg };

template <typename T>
BRAID_HD T pick(T a, T b, bool want_max) {
  return (want_max ? a < b : b < a) ? b : a;
}

/// sum, prod and avg of floats, in fp32 or, of fp64, in fp64.
template <typename F, Op kOp>
struct FloatReduction {
  static constexpr int kBytes = F::kBytes;
  using Format = F;
  using Bits = BitsFor<kBytes>;
  using Acc = std::conditional_t<kBytes == 8, double, float>;

  static BRAID_HD Acc load(Bits bits) { return F::widen(bits); }
  static BRAID_HD Acc apply(Acc a, Acc b) {
    if constexpr (kOp == Op::kProd) return multiply(a, b);
    return add(a, b);
  }
  /// Dividing by a power of two and multiplying with its inverse round the same number.
  static BRAID_HD Acc finish(Acc acc, int n) {
    if constexpr (kOp != Op::kAvg) return acc;
    const Acc divisor = static_cast<Acc>(n);
    return (n & (n - 1)) == 0 ? multiply(acc, Acc{1} / divisor) : divide(acc, divisor);
  }
  static BRAID_HD Bits store(Acc acc, int n) { return F::round(finish(acc, n)); }
};

/// min and max of floats, on signed integers in the order of IEEE totalOrder; NaN is the end of the
/// range that the operator never prefers (lanes.h, Ordered).
template <typename F, Op kOp>
struct OrderReduction {
  static constexpr int kBytes = F::kBytes;
  using Bits = BitsFor<kBytes>;
  using Acc = SignedFor<kBytes>;
  static constexpr int kSpare = 8 * static_cast<int>(sizeof(Bits)) - 8 * kBytes;
  static constexpr Acc kMagnitude = static_cast<Acc>((Bits{1} << (8 * kBytes - 1)) - 1);
  static constexpr Acc kNanKey = kOp == Op::kMin ? kMagnitude : -kMagnitude - 1;

  static BRAID_HD Acc turned(Acc key) {
    return key ^ ((key >> (8 * sizeof(Acc) - 1)) & kMagnitude);
  }
  static BRAID_HD Acc load(Bits bits) {
    const Acc extended = static_cast<Acc>(bits << kSpare) >> kSpare;
    return (extended & kMagnitude) > static_cast<Acc>(F::kInf) ? kNanKey : turned(extended);
  }
  static BRAID_HD Acc apply(Acc a, Acc b) { return pick(a, b, kOp == Op::kMax); }
  static BRAID_HD Bits store(Acc key, int) {
    constexpr Bits kAll = static_cast<Bits>(~Bits{0}) >> kSpare;
    return key == kNanKey ? F::kNan : static_cast<Bits>(turned(key)) & kAll;
  }
};

/// Integers: wrap in their own width; avg divides the wrapped sum, truncating toward zero.
template <typename T, Op kOp>
struct WholeReduction {
  static constexpr int kBytes = sizeof(T);
  static constexpr bool kOrders = kOp == Op::kMin || kOp == Op::kMax;
  using Bits = BitsFor<kBytes>;
  using Acc = std::conditional_t<kOrders && std::is_signed_v<T>, SignedFor<kBytes>, Bits>;

  static BRAID_HD Acc load(Bits bits) { return static_cast<Acc>(static_cast<T>(bits)); }
  static BRAID_HD Acc apply(Acc a, Acc b) {
    if constexpr (kOrders) return pick(a, b, kOp == Op::kMax);
    if constexpr (kOp == Op::kProd) return a * b;
    return a + b;
  }
  static BRAID_HD Bits store(Acc acc, int n) {
    T result = static_cast<T>(acc);
    if constexpr (kOp == Op::kAvg) result = static_cast<T>(result / static_cast<T>(n));
    return static_cast<Bits>(static_cast<std::make_unsigned_t<T>>(result));
  }
};

template <typename F, Op kOp>
struct Choose {
  using Type = std::conditional_t<kOp == Op::kMin || kOp == Op::kMax, OrderReduction<F, kOp>,
                                  FloatReduction<F, kOp>>;
};
template <typename T, Op kOp>
struct Choose<Whole<T>, kOp> {
  using Type = WholeReduction<T, kOp>;
};
template <typename F, Op kOp>
using Reduction = typename Choose<F, kOp>::Type;

}  // namespace braid::coll::device
