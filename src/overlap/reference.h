// What the kernels compute, on the CPU, in the same order: for tests, and to read.
//
// Elements are floats that hold values of the dtype. Matrices are dense, rows first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"

namespace braid::overlap::reference {

/// bfloat16 or float16: to the nearest, ties to even.
float rounded(Dtype dtype, float value);

struct Product {
  int32_t rows, columns, depth;
  bool is_kn;  // w is [depth, columns]
};
/// a[rows, depth] * w^T in fp32, unrounded.
std::vector<float> product(const Product& shape, std::span<const float> a,
                           std::span<const float> w);

/// One element of a reduced tile: products[r] is rank r's, unrounded. Parts travel rounded; the
/// owner's own is not; the sum is taken in the order of the ranks and, with the bias, rounded once.
float reduced(Dtype dtype, std::span<const float> products, int32_t owner, float bias);
/// The same where every rank rounds its own part, too, and all get the same bits (kExchange).
float exchanged(Dtype dtype, std::span<const float> products, float bias);

}  // namespace braid::overlap::reference
