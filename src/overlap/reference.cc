#include "overlap/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace braid::overlap::reference {
namespace {

float rounded_to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t to_even = 0x7FFF + ((bits >> 16) & 1U);
  return std::bit_cast<float>((bits + to_even) & 0xFFFF0000U);
}

// Eleven significant bits, or steps of 2^-24 below 2^-14.
float rounded_to_float16(float value) {
  if (value == 0) return value;
  const int exponent = std::max(std::ilogb(value), -14);
  const float step = std::ldexp(1.0F, exponent - 10);
  const float result = std::nearbyint(value / step) * step;
  return std::abs(result) > 65504 ? std::copysign(INFINITY, value) : result;
}

}  // namespace

float rounded(Dtype dtype, float value) {
  if (!std::isfinite(value)) return value;
  return dtype == Dtype::kFloat16 ? rounded_to_float16(value) : rounded_to_bfloat16(value);
}

std::vector<float> product(const Product& shape, std::span<const float> a,
                           std::span<const float> w) {
  const auto rows = static_cast<size_t>(shape.rows), columns = static_cast<size_t>(shape.columns),
             depth = static_cast<size_t>(shape.depth);
  std::vector<float> made(rows * columns);
  for (size_t m = 0; m < rows; ++m)
    for (size_t n = 0; n < columns; ++n) {
      float sum = 0;
      for (size_t k = 0; k < depth; ++k)
        sum += a[m * depth + k] * (shape.is_kn ? w[k * columns + n] : w[n * depth + k]);
      made[m * columns + n] = sum;
    }
  return made;
}

float reduced(Dtype dtype, std::span<const float> products, int32_t owner, float bias) {
  float sum = 0;
  for (size_t r = 0; r < products.size(); ++r)
    sum += r == static_cast<size_t>(owner) ? products[r] : rounded(dtype, products[r]);
  return rounded(dtype, sum + bias);
}

float exchanged(Dtype dtype, std::span<const float> products, float bias) {
  float sum = 0;
  for (const float part : products) sum += rounded(dtype, part);
  return rounded(dtype, sum + bias);
}

}  // namespace braid::overlap::reference
