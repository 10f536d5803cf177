// An independent reference for reduce(): element by element, in double precision and exact
// integers.
//
// Floats up to fp32: each step is done in double and rounded to fp32. That is the fp32 operation
// itself, because a double has more than twice fp32's digits plus two, so that rounding twice is
// rounding once.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "support/golden_formats.h"

namespace braid::golden {

using Array = std::vector<std::byte>;

__extension__ using Int128 = __int128;
__extension__ using Uint128 = unsigned __int128;

inline bool is_signed(Dtype dtype) {
  return dtype == Dtype::kInt8 || dtype == Dtype::kInt16 || dtype == Dtype::kInt32 ||
         dtype == Dtype::kInt64;
}

inline Int128 exact_value(uint64_t bits, Dtype dtype) {
  const int width = 8 * static_cast<int>(dtype_bytes(dtype));
  Int128 value = bits;
  if (is_signed(dtype) && ((bits >> (width - 1)) & 1) != 0) value -= Int128{1} << width;
  return value;
}

/// Keeps the low bits of an exact value: what wrapping means.
inline uint64_t wrapped(Int128 value, Dtype dtype) {
  const size_t bytes = dtype_bytes(dtype);
  const auto bits = static_cast<uint64_t>(static_cast<Uint128>(value));
  return bytes == 8 ? bits : bits & ((uint64_t{1} << (8 * bytes)) - 1);
}

/// Unsigned, because 64 by 64 bits fill all 128.
inline uint64_t wrapped_product(Int128 a, Int128 b, Dtype dtype) {
  return wrapped(static_cast<Int128>(static_cast<Uint128>(a) * static_cast<Uint128>(b)), dtype);
}

inline uint64_t reduce_whole(std::span<const uint64_t> operands, Dtype dtype, RedOp op) {
  Int128 acc = exact_value(operands[0], dtype);
  for (const uint64_t bits : operands.subspan(1)) {
    const Int128 x = exact_value(bits, dtype);
    switch (op) {
      case RedOp::kProd: acc = exact_value(wrapped_product(acc, x, dtype), dtype); break;
      case RedOp::kMin: acc = std::min(acc, x); break;
      case RedOp::kMax: acc = std::max(acc, x); break;
      default: acc += x;
    }
  }
  if (op == RedOp::kAvg)
    acc = exact_value(wrapped(acc, dtype), dtype) / static_cast<Int128>(operands.size());
  return wrapped(acc, dtype);
}

/// minNum and maxNum by comparing values; zeros by sign.
inline uint64_t pick(std::span<const uint64_t> operands, Dtype dtype, bool want_max) {
  uint64_t best = canonical_nan(dtype);
  for (const uint64_t bits : operands) {
    if (is_nan(bits, dtype)) continue;
    const double x = decode(bits, dtype);
    const double b = decode(best, dtype);
    const bool wins =
        want_max ? x > b || (x == b && std::signbit(b)) : x < b || (x == b && std::signbit(x));
    if (is_nan(best, dtype) || wins) best = bits;
  }
  return best;
}

/// One operation of the accumulator's type.
inline double rounded(double value, Dtype dtype) {
  if (dtype == Dtype::kFloat64) return value;
  return decode(encode(value, Dtype::kFloat32), Dtype::kFloat32);
}

inline uint64_t reduce_float(std::span<const uint64_t> operands, Dtype dtype, RedOp op) {
  if (op == RedOp::kMin || op == RedOp::kMax) return pick(operands, dtype, op == RedOp::kMax);
  double acc = decode(operands[0], dtype);
  for (const uint64_t bits : operands.subspan(1)) {
    const double x = decode(bits, dtype);
    acc = rounded(op == RedOp::kProd ? acc * x : acc + x, dtype);
  }
  if (op == RedOp::kAvg) acc = rounded(acc / static_cast<double>(operands.size()), dtype);
  return encode(acc, dtype);
}
/// What reduce() must give, bit for bit.
inline Array reduce(std::span<const void* const> srcs, uint64_t count, Dtype dtype, RedOp op) {
  Array out(count * dtype_bytes(dtype));
  if (srcs.size() == 1) {  // one operand is copied: nothing is computed, so nothing is rounded
    if (count > 0) std::memcpy(out.data(), srcs[0], out.size());
    return out;
  }
  std::vector<uint64_t> operands(srcs.size());
  for (uint64_t i = 0; i < count; ++i) {
    for (size_t r = 0; r < srcs.size(); ++r) operands[r] = element(srcs[r], i, dtype);
    const uint64_t bits =
        is_float(dtype) ? reduce_float(operands, dtype, op) : reduce_whole(operands, dtype, op);
    set_element(out.data(), i, dtype, bits);
  }
  return out;
}

/// A bound of |computed - exact| for a sum or average of `values`, accumulated in order with the
/// dtype's accumulator and rounded once: n - 1 additions of relative error u each, one division,
/// one rounding of the result.
inline double sum_error_bound(std::span<const double> values, Dtype dtype, RedOp op) {
  const double n = static_cast<double>(values.size());
  const double accumulator_unit = std::ldexp(1.0, dtype == Dtype::kFloat64 ? -53 : -24);
  double absolute = 0;
  for (const double value : values) absolute += std::fabs(value);
  double scale = op == RedOp::kAvg ? absolute / n : absolute;
  // (n + 1) u: n - 1 additions and a division, and one more u for the second-order terms.
  const double accumulated = (n + 1) * accumulator_unit * scale;
  const Format f = format_of(dtype);
  const double stored = std::max(std::ldexp(scale + accumulated, -f.fraction_bits - 1),
                                 std::ldexp(1.0, -f.bias() - f.fraction_bits));
  return accumulated + stored;
}

}  // namespace braid::golden
