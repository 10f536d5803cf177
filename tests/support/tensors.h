// Test data for collectives. An element is a function of (seed, rank, index) alone, so that any
// rank can make any part of any other rank's tensor, and a piece that lands at a wrong offset or
// comes from a wrong rank shows.
//
//   const test::Tensors data{test::Fill::kHeavyTail, Dtype::kBfloat16, num_ranks, seed};
//   const golden::Array send = data.of(rank, 0, count);
//   ... all_reduce ...
//   EXPECT_EQ(test::first_difference(recv, data.expected(RedOp::kSum, 0, count), data.dtype), "");
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "support/golden.h"

namespace braid::test {

enum class Fill : uint8_t {
  kExactSum,    // small whole numbers: every partial sum of all ranks is exact, in any order and in
                // the dtype itself
  kRandomBits,  // any bits; a fifth are NaN with payload, infinities, -0.0, subnormals, the ends of
                // the range
  kHeavyTail,   // floats of very different size (Cauchy), so that order and rounding show; integers
                // get random bits
};
inline constexpr Fill kAllFills[] = {Fill::kExactSum, Fill::kRandomBits, Fill::kHeavyTail};

/// A well-mixed word of (seed, rank, index): the finalizer of splitmix64.
inline uint64_t mixed(uint64_t seed, int rank, uint64_t index) {
  uint64_t z = seed * 0x9e3779b97f4a7c15 + (static_cast<uint64_t>(rank) << 40) + index + 1;
  for (int round = 0; round < 2; ++round) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
  }
  return z;
}

/// The patterns on which formats and operators differ. The first two are the zeros.
inline std::vector<uint64_t> special_patterns(Dtype dtype) {
  const uint64_t sign = uint64_t{1} << (8 * dtype_bytes(dtype) - 1);
  // Smallest subnormals or integers, the largest magnitude, all ones: for floats the latter are
  // NaN.
  std::vector<uint64_t> patterns = {0, sign, 1, sign | 1, sign - 1, sign | (sign - 1)};
  if (!golden::is_float(dtype)) return patterns;
  const uint64_t nan = golden::canonical_nan(dtype);
  patterns.insert(patterns.end(), {nan, nan | sign, nan | 1, nan | sign | 2});
  for (const double value : {1.0, -1.0, HUGE_VAL, -HUGE_VAL, 1e-40, 3e38, -65504.0})
    patterns.push_back(golden::encode(value, dtype));
  return patterns;
}

/// Whole numbers up to this are exact in `dtype`; 0 for integers, which wrap and so are exact
/// always.
inline int64_t exact_limit(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat8E5m2: return 8;
    case Dtype::kFloat8E4m3: return 16;
    case Dtype::kBfloat16: return 256;
    case Dtype::kFloat16: return 2048;
    case Dtype::kFloat32: return int64_t{1} << 24;
    case Dtype::kFloat64: return int64_t{1} << 53;
    default: return 0;
  }
}

struct Tensors {
  Fill fill;
  Dtype dtype;
  int num_ranks;
  uint64_t seed;

  /// Elements [first, first + count) of `rank`'s tensor.
  golden::Array of(int rank, uint64_t first, uint64_t count) const {
    const std::vector<uint64_t> special = special_patterns(dtype);
    golden::Array out(count * dtype_bytes(dtype));
    for (uint64_t i = 0; i < count; ++i)
      golden::set_element(out.data(), i, dtype, bits(rank, first + i, special));
    return out;
  }

  /// Every rank's elements [first, first + count).
  std::vector<golden::Array> all(uint64_t first, uint64_t count) const {
    std::vector<golden::Array> out;
    for (int rank = 0; rank < num_ranks; ++rank) out.push_back(of(rank, first, count));
    return out;
  }

  /// What the reduction over all ranks gives there, bit for bit. Block b of a reduce-scatter is
  /// first = b * count.
  golden::Array expected(RedOp op, uint64_t first, uint64_t count) const {
    const std::vector<golden::Array> operands = all(first, count);
    std::vector<const void*> srcs;
    for (const golden::Array& operand : operands) srcs.push_back(operand.data());
    return golden::reduce(srcs, count, dtype, op);
  }

 private:
  uint64_t bits(int rank, uint64_t index, const std::vector<uint64_t>& special) const {
    const uint64_t draw = mixed(seed, rank, index);
    const bool is_number = golden::is_float(dtype);
    if (fill == Fill::kExactSum) return is_number ? exact_number(rank, draw) : draw;
    if (fill == Fill::kHeavyTail && is_number) return golden::encode(cauchy(draw), dtype);
    const uint64_t high = draw >> 32;
    return fill == Fill::kRandomBits && draw % 5 == 0 ? special[high % special.size()]
                                                      : mixed(~seed, rank, index);
  }

  /// In [-m, m] with m * num_ranks within the limit; where there are more ranks than that, the rest
  /// hold zeros.
  uint64_t exact_number(int rank, uint64_t draw) const {
    const int64_t limit = exact_limit(dtype);
    if (rank >= limit) return 0;
    const int64_t m = std::clamp<int64_t>(limit / num_ranks, 1, 1000);
    const int64_t value = static_cast<int64_t>(draw % static_cast<uint64_t>(2 * m + 1)) - m;
    return golden::encode(static_cast<double>(value), dtype);
  }

  static double cauchy(uint64_t draw) {
    const double uniform = static_cast<double>(draw >> 11) * 0x1p-53;
    return std::tan(M_PI * (uniform - 0.5));
  }
};

/// "" when equal, else the first element that differs: index, bits got and wanted.
inline std::string first_difference(const void* got, const golden::Array& want, Dtype dtype) {
  if (want.empty() || std::memcmp(got, want.data(), want.size()) == 0) return "";
  uint64_t i = 0;
  while (golden::element(got, i, dtype) == golden::element(want.data(), i, dtype)) ++i;
  char text[120];
  std::snprintf(text, sizeof text, "%s element %llu: got 0x%llx, want 0x%llx", dtype_name(dtype),
                static_cast<unsigned long long>(i),
                static_cast<unsigned long long>(golden::element(got, i, dtype)),
                static_cast<unsigned long long>(golden::element(want.data(), i, dtype)));
  return text;
}
inline std::string first_difference(const golden::Array& got, const golden::Array& want,
                                    Dtype dtype) {
  if (got.size() != want.size())
    return "got " + std::to_string(got.size()) + " bytes, want " + std::to_string(want.size());
  return first_difference(got.data(), want, dtype);
}

}  // namespace braid::test
