// The element formats by their definition: sign, exponent, fraction, scaled by powers of two in
// double precision. Slow and plain, and shares no code and no bit trick with src/coll/reduce, which
// it is the judge of.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/dtype.h"

namespace braid::golden {

struct Format {
  int exponent_bits;
  int fraction_bits;
  bool has_inf;    // e4m3fn has none: its top exponent holds numbers, all ones is NaN
  bool saturates;  // instead of overflowing to infinity
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint64_t top() const { return (uint64_t{1} << exponent_bits) - 1; }
  uint64_t sign() const { return uint64_t{1} << (exponent_bits + fraction_bits); }
};

inline Format format_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16: return {5, 10, true, false};
    case Dtype::kBfloat16: return {8, 7, true, false};
    case Dtype::kFloat32: return {8, 23, true, false};
    case Dtype::kFloat64: return {11, 52, true, false};
    case Dtype::kFloat8E4m3: return {4, 3, false, true};
    default: return {5, 2, true, true};  // e5m2
  }
}

struct Parts {
  bool negative;
  uint64_t exponent;
  uint64_t fraction;
};

inline Parts split(uint64_t bits, const Format& f) {
  return {(bits & f.sign()) != 0, (bits >> f.fraction_bits) & f.top(),
          bits & ((uint64_t{1} << f.fraction_bits) - 1)};
}

inline double largest_finite(const Format& f) {
  const double ulps =
      f.has_inf ? 1 : 2;  // below the first power of two outside: one unit, or two for e4m3fn
  const int exponent = static_cast<int>(f.top()) - (f.has_inf ? 1 : 0) - f.bias();
  return std::ldexp(2.0 - ulps * std::ldexp(1.0, -f.fraction_bits), exponent);
}

inline bool is_float(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
    case Dtype::kFloat32:
    case Dtype::kFloat64:
    case Dtype::kFloat8E4m3:
    case Dtype::kFloat8E5m2: return true;
    default: return false;
  }
}

/// What arithmetic leaves when its result is NaN.
inline uint64_t canonical_nan(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16: return 0x7e00;
    case Dtype::kBfloat16: return 0x7fc0;
    case Dtype::kFloat32: return 0x7fc00000;
    case Dtype::kFloat64: return 0x7ff8000000000000;
    default: return 0x7f;
  }
}

inline bool is_nan(uint64_t bits, Dtype dtype) {
  const Format f = format_of(dtype);
  const Parts p = split(bits, f);
  if (p.exponent != f.top()) return false;
  return f.has_inf ? p.fraction != 0 : p.fraction == (uint64_t{1} << f.fraction_bits) - 1;
}

/// The value of one element of a float dtype; NaN for every NaN. `bits` are the element's, in the
/// low end.
inline double decode(uint64_t bits, Dtype dtype) {
  const Format f = format_of(dtype);
  const Parts p = split(bits, f);
  double magnitude = 0;
  if (is_nan(bits, dtype)) return std::numeric_limits<double>::quiet_NaN();
  if (f.has_inf && p.exponent == f.top()) {
    magnitude = std::numeric_limits<double>::infinity();
  } else if (p.exponent == 0) {
    magnitude = std::ldexp(static_cast<double>(p.fraction), 1 - f.bias() - f.fraction_bits);
  } else {
    const double whole = static_cast<double>((uint64_t{1} << f.fraction_bits) + p.fraction);
    magnitude = std::ldexp(whole, static_cast<int>(p.exponent) - f.bias() - f.fraction_bits);
  }
  return p.negative ? -magnitude : magnitude;
}

/// Rounds to nearest even; NaN becomes the canonical NaN of the dtype; fp8 saturates, others
/// overflow to infinity.
inline uint64_t encode(double value, Dtype dtype) {
  if (std::isnan(value)) return canonical_nan(dtype);
  if (dtype == Dtype::kFloat64) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
  }
  const Format f = format_of(dtype);
  const uint64_t sign = std::signbit(value) ? f.sign() : 0;
  const double magnitude = std::fabs(value);
  const int least = 1 - f.bias();
  const int exponent =
      magnitude == 0 || std::isinf(magnitude) ? least : std::max(std::ilogb(magnitude), least);
  // The number of units, rounded to nearest even by nearbyint.
  const int unit = exponent - f.fraction_bits;
  const double result = std::ldexp(std::nearbyint(std::ldexp(magnitude, -unit)), unit);
  if (result > largest_finite(f)) {
    if (f.saturates) return sign | encode(largest_finite(f), dtype);
    return sign | f.top() << f.fraction_bits;
  }
  if (result < std::ldexp(1.0, least))
    return sign | static_cast<uint64_t>(std::ldexp(result, f.fraction_bits - least));
  const int e = std::ilogb(result);
  const auto digits = static_cast<uint64_t>(std::ldexp(result, f.fraction_bits - e));
  return sign | static_cast<uint64_t>(e + f.bias()) << f.fraction_bits |
         (digits - (uint64_t{1} << f.fraction_bits));
}

/// Element i of an array as raw bits.
inline uint64_t element(const void* array, uint64_t i, Dtype dtype) {
  const size_t bytes = dtype_bytes(dtype);
  uint64_t bits = 0;
  std::memcpy(&bits, static_cast<const std::byte*>(array) + i * bytes, bytes);
  return bits;
}

inline void set_element(void* array, uint64_t i, Dtype dtype, uint64_t bits) {
  const size_t bytes = dtype_bytes(dtype);
  std::memcpy(static_cast<std::byte*>(array) + i * bytes, &bits, bytes);
}

}  // namespace braid::golden
