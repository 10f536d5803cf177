// The loops and the table of one build. Included by kernels_generic.cc, kernels_avx2.cc and
// kernels_avx512.cc alone.
//
// A pass reads up to four sources at once, so that an accumulator stays in a register over them:
// with two to four sources one pass does it all. More sources are reduced block by block, kBlock
// elements at a time: the first pass fills an array of accumulators that stays in the first-level
// cache, the last one stores the results. All sources of a block are read at i before dst is
// written at i, which is why dst may be one of them.
#pragma once

#include "coll/reduce/kernels.h"
#include "coll/reduce/lanes.h"

// Says that iterations are independent: dst either equals a source (then the same iteration reads
// and writes an element) or overlaps none. Without it the compiler's overlap test would send the
// in-place case to a scalar loop.
#if defined(__clang__)
// Loops whose accumulator is a register already are not made wider, and need not be.
#pragma clang diagnostic ignored "-Wpass-failed"
#define BRAID_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define BRAID_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace braid::coll::BRAID_REDUCE_ISA {

// Accumulators: 4 KiB in fp32, 8 KiB in fp64, of at least 32 KiB of L1d.
inline constexpr uint64_t kBlock = 1024;

/// One pass over `count` elements: takes accumulators from `acc` unless first, puts them there
/// unless last.
template <typename F, typename Op, int kSources, bool kFirst, bool kLast>
struct Pass {
  const Bytes* s0;
  const Bytes* s1;
  const Bytes* s2;
  const Bytes* s3;

  Pass(const void* const* srcs, uint64_t begin) {
    s0 = at(srcs[0], begin);
    s1 = kSources > 1 ? at(srcs[1], begin) : s0;
    s2 = kSources > 2 ? at(srcs[2], begin) : s0;
    s3 = kSources > 3 ? at(srcs[3], begin) : s0;
  }
  static const Bytes* at(const void* src, uint64_t begin) {
    return static_cast<const Bytes*>(src) + begin * F::kBytes;
  }

  typename F::Acc combine(typename F::Acc before, uint64_t offset) const {
    typename F::Acc a = F::load(s0 + offset);
    if constexpr (!kFirst) a = Op::apply(before, a);
    if constexpr (kSources > 1) a = Op::apply(a, F::load(s1 + offset));
    if constexpr (kSources > 2) a = Op::apply(a, F::load(s2 + offset));
    if constexpr (kSources > 3) a = Op::apply(a, F::load(s3 + offset));
    return a;
  }

  void run(uint64_t count, typename F::Acc* acc, Bytes* dst, size_t n) const {
    const Pass p = *this;  // locals: the stores below cannot change them
    const uint64_t groups = count / F::kWide;
    BRAID_INDEPENDENT
    for (uint64_t g = 0; g < groups; ++g) {
      const uint64_t offset = g * F::kWide * F::kBytes;
      const auto a = p.combine(kFirst ? typename F::Acc{} : acc[g], offset);
      if constexpr (kLast) {
        F::store(dst + offset, Op::finish(a, n));
      } else {
        acc[g] = a;
      }
    }
    if constexpr (F::kWide > 1) {
      if (count % F::kWide != 0) p.run_rest(groups, count % F::kWide * F::kBytes, acc, dst, n);
    }
  }

  /// The last, incomplete group, through copies padded with zeros.
  void run_rest(uint64_t group, size_t bytes, typename F::Acc* acc, Bytes* dst, size_t n) const {
    constexpr size_t kGroupBytes = F::kWide * F::kBytes;
    const uint64_t offset = group * kGroupBytes;
    Bytes copies[4][kGroupBytes] = {};
    Pass p = *this;
    const Bytes** sources[] = {&p.s0, &p.s1, &p.s2, &p.s3};
    for (int k = 0; k < kSources; ++k) {
      __builtin_memcpy(copies[k], *sources[k] + offset, bytes);
      *sources[k] = copies[k];
    }
    const auto a = p.combine(kFirst ? typename F::Acc{} : acc[group], 0);
    if constexpr (kLast) {
      F::store(copies[0], Op::finish(a, n));
      __builtin_memcpy(dst + offset, copies[0], bytes);
    } else {
      acc[group] = a;
    }
  }
};

/// The pass that ends a reduction, over the last one to four sources.
template <typename F, typename Op, bool kFirst>
void last_pass(const void* const* srcs, size_t left, uint64_t begin, uint64_t count,
               typename F::Acc* acc, Bytes* dst, size_t n) {
  switch (left) {
    case 1:
      // Never first: reduce() copies a single source.
      if constexpr (!kFirst) Pass<F, Op, 1, kFirst, true>(srcs, begin).run(count, acc, dst, n);
      return;
    case 2: return Pass<F, Op, 2, kFirst, true>(srcs, begin).run(count, acc, dst, n);
    case 3: return Pass<F, Op, 3, kFirst, true>(srcs, begin).run(count, acc, dst, n);
    default: return Pass<F, Op, 4, kFirst, true>(srcs, begin).run(count, acc, dst, n);
  }
}

template <typename F, typename Op>
void kernel(const void* const* srcs, size_t n, void* dst, uint64_t count, size_t divisor) {
  Bytes* out = static_cast<Bytes*>(dst);
  if (n <= 4) return last_pass<F, Op, true>(srcs, n, 0, count, nullptr, out, divisor);
  alignas(64) typename F::Acc acc[kBlock / F::kWide];
  for (uint64_t begin = 0; begin < count; begin += kBlock) {
    const uint64_t block = count - begin < kBlock ? count - begin : kBlock;
    Pass<F, Op, 4, true, false>(srcs, begin).run(block, acc, nullptr, divisor);
    size_t done = 4;
    for (; n - done > 4; done += 4)
      Pass<F, Op, 4, false, false>(srcs + done, begin).run(block, acc, nullptr, divisor);
    last_pass<F, Op, false>(srcs + done, n - done, begin, block, acc, out + begin * F::kBytes,
                            divisor);
  }
}

/// `Signed` orders bit patterns: infinity and the NaN to return are given as such.
template <typename F, typename Signed, Signed kInf, Signed kNan>
Kernel float_kernel(RedOp op) {
  constexpr Signed kLowest = static_cast<Signed>(uint64_t{1} << (8 * sizeof(Signed) - 1));
  constexpr Signed kHighest = static_cast<Signed>(~kLowest);
  switch (op) {
    case RedOp::kSum: return kernel<F, Sum>;
    case RedOp::kProd: return kernel<F, Prod>;
    case RedOp::kMin: return kernel<Ordered<Signed, kInf, kNan, kHighest>, Min>;
    case RedOp::kMax: return kernel<Ordered<Signed, kInf, kNan, kLowest>, Max>;
    case RedOp::kAvg: return kernel<F, Avg>;
  }
  return nullptr;
}

template <typename T, typename Unsigned>
Kernel whole_kernel(RedOp op) {
  switch (op) {
    case RedOp::kSum: return kernel<Whole<Unsigned>, Sum>;
    case RedOp::kProd: return kernel<Whole<Unsigned>, Prod>;
    case RedOp::kMin: return kernel<Whole<T>, Min>;
    case RedOp::kMax: return kernel<Whole<T>, Max>;
    case RedOp::kAvg: return kernel<Whole<Unsigned>, WholeAvg<T>>;
  }
  return nullptr;
}

// Each of the three files has its own, in its namespace.
// NOLINTNEXTLINE(misc-definitions-in-headers)
Kernel find_kernel(Dtype dtype, RedOp op) noexcept {
  switch (dtype) {
    case Dtype::kInt8: return whole_kernel<int8_t, uint8_t>(op);
    case Dtype::kUint8: return whole_kernel<uint8_t, uint8_t>(op);
    case Dtype::kInt16: return whole_kernel<int16_t, uint16_t>(op);
    case Dtype::kUint16: return whole_kernel<uint16_t, uint16_t>(op);
    case Dtype::kInt32: return whole_kernel<int32_t, uint32_t>(op);
    case Dtype::kUint32: return whole_kernel<uint32_t, uint32_t>(op);
    case Dtype::kInt64: return whole_kernel<int64_t, uint64_t>(op);
    case Dtype::kUint64: return whole_kernel<uint64_t, uint64_t>(op);
    case Dtype::kFloat16: return float_kernel<Half, int16_t, 0x7c00, 0x7e00>(op);
    case Dtype::kBfloat16: return float_kernel<Narrow<Bf16, 2>, int16_t, 0x7f80, 0x7fc0>(op);
    case Dtype::kFloat32: return float_kernel<Plain<float>, int32_t, 0x7f800000, 0x7fc00000>(op);
    case Dtype::kFloat64:
      return float_kernel<Plain<double>, int64_t, 0x7ff0000000000000, 0x7ff8000000000000>(op);
    case Dtype::kFloat8E4m3:
      return float_kernel<Narrow<E4m3, 1>, int8_t, 0x7e, 0x7f>(op);  // 0x7e is its largest number
    case Dtype::kFloat8E5m2: return float_kernel<Narrow<E5m2, 1>, int8_t, 0x7c, 0x7f>(op);
  }
  return nullptr;
}

}  // namespace braid::coll::BRAID_REDUCE_ISA
