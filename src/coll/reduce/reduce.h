// Element-wise reduction over ranks: the numbers contract in one function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace braid::coll {

/// dst[i] = op over r of srcs[r][i], for i in [0, count).
/// Numbers  order r = 0..srcs.size()-1 always. sum, prod, avg of fp8, fp16, bf16, fp32 accumulate
///          in fp32, of fp64 in fp64, and round once at the end (nearest even; fp8 saturates to the
///          largest finite value as CUDA's conversion does); avg multiplies the accumulated sum by
///          nothing but one division by srcs.size(). Integers wrap in their own width; integer avg
///          divides the wrapped sum, truncating toward zero. min and max of floats are IEEE
///          minNum/maxNum: a number wins over NaN, -0 < +0; NaN when all are NaN.
/// Aliasing dst may equal any one of srcs exactly, and overlap none otherwise. Any alignment.
/// Bits     equal for every vector width and machine (no contraction to FMA, no reassociation).
/// Threads  any. Cost: reads srcs.size() * count elements, writes count.
void reduce(std::span<const void* const> srcs, void* dst, uint64_t count, Dtype dtype, RedOp op);

/// The same where the sources are partial sums of `divisor` >= srcs.size() operands (two sources or
/// more): an average is divided here, once, by all of them. Partials of an average are sums.
void reduce_partials(std::span<const void* const> srcs, void* dst, uint64_t count, Dtype dtype,
                     RedOp op, size_t divisor);

/// Which instruction set reduce() uses here: "avx512", "avx2" or "generic" (BRAID has no option for
/// it; tests do).
const char* reduce_isa() noexcept;

}  // namespace braid::coll
