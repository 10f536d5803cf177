// reduce() and the kernels of every instruction set against tests/support/golden, bit for bit.
#include "coll/reduce/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "coll/reduce/kernels.h"
#include "support/golden.h"
#include "support/tensors.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace braid::coll {
namespace {

using test::Fill;
using test::Tensors;
using Arrays = std::vector<golden::Array>;

std::vector<const void*> pointers(const Arrays& arrays, size_t offset_bytes = 0) {
  std::vector<const void*> out;
  for (const auto& array : arrays) out.push_back(array.data() + offset_bytes);
  return out;
}

Arrays random_bits(size_t num_srcs, uint64_t count, Dtype dtype, uint64_t seed) {
  return Tensors{Fill::kRandomBits, dtype, static_cast<int>(num_srcs), seed}.all(0, count);
}
Arrays heavy_tail(size_t num_srcs, uint64_t count, Dtype dtype, uint64_t seed) {
  return Tensors{Fill::kHeavyTail, dtype, static_cast<int>(num_srcs), seed}.all(0, count);
}

std::string where(Dtype dtype, RedOp op, uint64_t count, size_t num_srcs) {
  return std::string(dtype_name(dtype)) + " " + redop_name(op) + ", " + std::to_string(count) +
         " elements of " + std::to_string(num_srcs) + " sources";
}

void expect_same(const void* got, const golden::Array& want, Dtype dtype,
                 const std::string& context) {
  ASSERT_EQ(test::first_difference(got, want, dtype), "") << context;
}

constexpr uint64_t kCounts[] = {0, 1, 3, 7, 8, 15, 16, 17, 31, 33, 1000, 4099};
constexpr size_t kNumSrcs[] = {1, 2, 3, 4, 5, 8, 16};

class Reduce : public testing::TestWithParam<std::tuple<Dtype, RedOp>> {
 protected:
  Dtype dtype() const { return std::get<0>(GetParam()); }
  RedOp op() const { return std::get<1>(GetParam()); }
  size_t bytes() const { return dtype_bytes(dtype()); }
};

TEST_P(Reduce, EveryCountAndNumberOfSources) {
  for (const size_t n : kNumSrcs)
    for (const uint64_t count : kCounts) {
      const Arrays arrays = random_bits(n, count, dtype(), count * 31 + n);
      const auto srcs = pointers(arrays);
      golden::Array dst(count * bytes() + 1, std::byte{0xa5});
      reduce(srcs, dst.data(), count, dtype(), op());
      expect_same(dst.data(), golden::reduce(srcs, count, dtype(), op()), dtype(),
                  where(dtype(), op(), count, n));
      ASSERT_EQ(dst.back(), std::byte{0xa5})
          << "wrote past the end, " << where(dtype(), op(), count, n);
      if (HasFatalFailure()) return;
    }
}

TEST_P(Reduce, EveryInstructionSetGivesTheSameBits) {
  for (const size_t n : {2, 3, 4, 5, 8, 9, 16})
    for (const uint64_t count : {1, 7, 17, 1000, 2100}) {
      const Arrays arrays = random_bits(n, count, dtype(), count * 7 + n);
      const auto srcs = pointers(arrays);
      const golden::Array want = golden::reduce(srcs, count, dtype(), op());
      for (const Isa isa : kAllIsas) {
        if (!has_isa(isa)) continue;
        golden::Array dst(count * bytes());
        find_kernel(isa, dtype(), op())(srcs.data(), n, dst.data(), count, n);
        expect_same(dst.data(), want, dtype(),
                    std::string(isa_name(isa)) + " " + where(dtype(), op(), count, n));
        if (HasFatalFailure()) return;
      }
    }
}

TEST_P(Reduce, DstMayBeAnySource) {
  for (const size_t n : {2, 4, 7})
    for (size_t place = 0; place < n; ++place)
      for (const uint64_t count : {5, 1500}) {
        Arrays arrays = random_bits(n, count, dtype(), place * 100 + n);
        const golden::Array want = golden::reduce(pointers(arrays), count, dtype(), op());
        const auto srcs = pointers(arrays);
        reduce(srcs, arrays[place].data(), count, dtype(), op());
        expect_same(arrays[place].data(), want, dtype(),
                    where(dtype(), op(), count, n) + " in place");
        if (HasFatalFailure()) return;
      }
}

TEST_P(Reduce, AnyAlignment) {
  constexpr uint64_t kCount = 100;
  for (size_t offset = 1; offset < 8; offset += 2)
    for (const size_t n : {2, 5}) {
      Arrays arrays = random_bits(n, kCount + 8, dtype(), offset);
      const auto srcs = pointers(arrays, offset);
      golden::Array dst(kCount * bytes() + 8);
      reduce(srcs, dst.data() + offset, kCount, dtype(), op());
      expect_same(dst.data() + offset, golden::reduce(srcs, kCount, dtype(), op()), dtype(),
                  where(dtype(), op(), kCount, n) + " at offset " + std::to_string(offset));
      if (HasFatalFailure()) return;
    }
}

TEST_P(Reduce, HeavyTailedData) {
  for (const size_t n : {3, 8, 16}) {
    const Arrays arrays = heavy_tail(n, 2000, dtype(), n);
    const auto srcs = pointers(arrays);
    golden::Array dst(2000 * bytes());
    reduce(srcs, dst.data(), 2000, dtype(), op());
    expect_same(dst.data(), golden::reduce(srcs, 2000, dtype(), op()), dtype(),
                where(dtype(), op(), 2000, n));
  }
}

TEST_P(Reduce, CuttingTheArrayChangesNothing) {
  constexpr uint64_t kCount = 3000;
  const Arrays arrays = heavy_tail(6, kCount, dtype(), 11);
  golden::Array whole(kCount * bytes());
  golden::Array pieces(kCount * bytes());
  reduce(pointers(arrays), whole.data(), kCount, dtype(), op());
  std::mt19937_64 rng(5);
  for (uint64_t begin = 0; begin < kCount;) {
    const uint64_t piece = std::min<uint64_t>(1 + rng() % 300, kCount - begin);
    reduce(pointers(arrays, begin * bytes()), pieces.data() + begin * bytes(), piece, dtype(),
           op());
    begin += piece;
  }
  EXPECT_EQ(whole, pieces);
}

std::string case_name(const testing::TestParamInfo<std::tuple<Dtype, RedOp>>& param) {
  return std::string(dtype_name(std::get<0>(param.param))) + "_" +
         redop_name(std::get<1>(param.param));
}
INSTANTIATE_TEST_SUITE_P(All, Reduce,
                         testing::Combine(testing::ValuesIn(kAllDtypes),
                                          testing::ValuesIn(kAllRedOps)),
                         case_name);

uint64_t reduce_one(const std::vector<uint64_t>& operands, Dtype dtype, RedOp op) {
  std::vector<const void*> srcs;
  for (const uint64_t& bits : operands) srcs.push_back(&bits);
  uint64_t out = 0;
  reduce(srcs, &out, 1, dtype, op);
  return out;
}

uint64_t reduce_values(const std::vector<double>& values, Dtype dtype, RedOp op) {
  std::vector<uint64_t> bits;
  for (const double value : values) bits.push_back(golden::encode(value, dtype));
  return reduce_one(bits, dtype, op);
}

TEST(ReduceOrder, ExactSumsDoNotDependOnIt) {
  for (const Dtype dtype : kAllDtypes)
    for (const RedOp op : {RedOp::kSum, RedOp::kAvg})
      for (const int n : {2, 4, 16}) {
        Arrays arrays = Tensors{Fill::kExactSum, dtype, n, 9}.all(0, 300);
        const golden::Array want = golden::reduce(pointers(arrays), 300, dtype, op);
        std::reverse(arrays.begin(), arrays.end());
        golden::Array dst(want.size());
        reduce(pointers(arrays), dst.data(), 300, dtype, op);
        expect_same(dst.data(), want, dtype, where(dtype, op, 300, static_cast<size_t>(n)));
      }
}

// 1e8 swallows a 1 in fp32, so the sum tells in which order it was taken.
TEST(ReduceOrder, SumsFollowTheRanks) {
  std::vector<double> values = {1e8, 1.0, -1e8, 1.0};
  std::sort(values.begin(), values.end());
  do {
    float acc = static_cast<float>(values[0]);
    for (size_t r = 1; r < values.size(); ++r) acc = acc + static_cast<float>(values[r]);
    EXPECT_EQ(reduce_values(values, Dtype::kFloat32, RedOp::kSum), std::bit_cast<uint32_t>(acc));
  } while (std::next_permutation(values.begin(), values.end()));
  EXPECT_EQ(reduce_values({1e8, 1, -1e8, 1}, Dtype::kFloat32, RedOp::kSum),
            std::bit_cast<uint32_t>(1.0f));
  EXPECT_EQ(reduce_values({1e8, -1e8, 1, 1}, Dtype::kFloat32, RedOp::kSum),
            std::bit_cast<uint32_t>(2.0f));
}

TEST(ReduceOrder, NarrowFloatsRoundOnceAtTheEnd) {
  // In bf16 each 2^-8 would vanish beside 1; in fp32 two of them reach the next bf16.
  EXPECT_EQ(reduce_values({1, 0.00390625, 0.00390625}, Dtype::kBfloat16, RedOp::kSum), 0x3f81u);
  // 60000 + 60000 overflows fp16, the average does not.
  EXPECT_EQ(reduce_values({60000, 60000}, Dtype::kFloat16, RedOp::kSum), 0x7c00u);
  EXPECT_EQ(reduce_values({60000, 60000}, Dtype::kFloat16, RedOp::kAvg),
            golden::encode(60000, Dtype::kFloat16));
  EXPECT_EQ(reduce_values({448, 448, -448}, Dtype::kFloat8E4m3, RedOp::kSum), 0x7eu);
  EXPECT_EQ(reduce_values({448, 448}, Dtype::kFloat8E4m3, RedOp::kSum), 0x7eu);
}

TEST(ReduceWhole, WrapsAndTruncates) {
  EXPECT_EQ(reduce_one({200, 100}, Dtype::kUint8, RedOp::kSum), 44u);
  EXPECT_EQ(reduce_one({100, 100}, Dtype::kInt8, RedOp::kAvg) & 0xff,
            228u);  // 200 wraps to -56, / 2 = -28
  EXPECT_EQ(reduce_one({0xff, 0xfe, 0xfe, 0}, Dtype::kInt8, RedOp::kAvg) & 0xff,
            0xffu);  // -5 / 4 = -1
  EXPECT_EQ(reduce_one({65535, 65535}, Dtype::kUint16, RedOp::kProd), 1u);
  EXPECT_EQ(reduce_one({~uint64_t{0}, 2}, Dtype::kUint64, RedOp::kAvg), 0u);
}

// The division of integer averages is done in floating point; each quotient near a whole number is
// a chance to fail.
TEST(ReduceWhole, AveragesAreExactNearWholeNumbers) {
  for (const Dtype dtype :
       {Dtype::kInt32, Dtype::kUint32, Dtype::kInt16, Dtype::kUint16, Dtype::kInt8})
    for (const size_t n : {2, 3, 7, 10, 255, 1000}) {
      constexpr uint64_t kCount = 4096;
      Arrays arrays(n, golden::Array(kCount * dtype_bytes(dtype)));
      std::mt19937_64 rng(n);
      for (uint64_t i = 0; i < kCount; ++i) {
        const uint64_t near = rng() / n * n + i % 3 - 1;
        golden::set_element(arrays[0].data(), i, dtype, near);
      }
      const auto srcs = pointers(arrays);
      golden::Array dst(kCount * dtype_bytes(dtype));
      reduce(srcs, dst.data(), kCount, dtype, RedOp::kAvg);
      expect_same(dst.data(), golden::reduce(srcs, kCount, dtype, RedOp::kAvg), dtype,
                  where(dtype, RedOp::kAvg, kCount, n));
    }
}

TEST(ReduceMinMax, NumbersWinOverNanAndZerosHaveAnOrder) {
  for (const Dtype dtype : kAllDtypes) {
    if (!golden::is_float(dtype)) continue;
    const uint64_t minus = uint64_t{1} << (8 * dtype_bytes(dtype) - 1);
    const uint64_t one = golden::encode(1, dtype);
    const uint64_t nan = golden::canonical_nan(dtype);
    for (const uint64_t n : {nan, nan | minus}) {
      EXPECT_EQ(reduce_one({n, one}, dtype, RedOp::kMin), one) << dtype_name(dtype);
      EXPECT_EQ(reduce_one({one, n}, dtype, RedOp::kMax), one) << dtype_name(dtype);
      EXPECT_EQ(reduce_one({n, n}, dtype, RedOp::kMin), nan) << dtype_name(dtype);
      EXPECT_EQ(reduce_one({n, n}, dtype, RedOp::kMax), nan) << dtype_name(dtype);
    }
    EXPECT_EQ(reduce_one({0, minus}, dtype, RedOp::kMin), minus) << dtype_name(dtype);
    EXPECT_EQ(reduce_one({minus, 0}, dtype, RedOp::kMax), 0u) << dtype_name(dtype);
  }
  EXPECT_EQ(reduce_one({0x7c, 0x7b}, Dtype::kFloat8E5m2, RedOp::kMax), 0x7cu)
      << "max keeps infinity";
}

TEST(ReduceOne, ASingleSourceIsCopiedBitForBit) {
  EXPECT_EQ(reduce_one({0x7f800001}, Dtype::kFloat32, RedOp::kSum), 0x7f800001u);
  EXPECT_EQ(reduce_one({0x7c}, Dtype::kFloat8E5m2, RedOp::kAvg), 0x7cu);
}

TEST(ReduceNan, EveryNanOfArithmeticIsTheCanonicalOne) {
  EXPECT_EQ(reduce_one({0xffc12345, 0x7fdeadbe}, Dtype::kFloat32, RedOp::kSum), 0x7fc00000u);
  EXPECT_EQ(reduce_values({HUGE_VAL, -HUGE_VAL}, Dtype::kFloat64, RedOp::kSum),
            0x7ff8000000000000u);
  EXPECT_EQ(reduce_values({HUGE_VAL, 0}, Dtype::kFloat16, RedOp::kProd), 0x7e00u);
}

TEST(ReduceError, SumsStayWithinTheirBound) {
  for (const Dtype dtype : kAllDtypes) {
    if (!golden::is_float(dtype)) continue;
    for (const RedOp op : {RedOp::kSum, RedOp::kAvg}) {
      constexpr size_t kSources = 16;
      constexpr uint64_t kCount = 500;
      std::mt19937_64 rng(3);
      std::normal_distribution<double> normal(0, 1);
      Arrays arrays(kSources, golden::Array(kCount * dtype_bytes(dtype)));
      for (auto& array : arrays)
        for (uint64_t i = 0; i < kCount; ++i)
          golden::set_element(array.data(), i, dtype, golden::encode(normal(rng), dtype));
      golden::Array dst(kCount * dtype_bytes(dtype));
      reduce(pointers(arrays), dst.data(), kCount, dtype, op);
      for (uint64_t i = 0; i < kCount; ++i) {
        std::vector<double> values;
        for (const auto& array : arrays)
          values.push_back(golden::decode(golden::element(array.data(), i, dtype), dtype));
        long double exact = std::accumulate(values.begin(), values.end(), 0.0L);
        if (op == RedOp::kAvg) exact /= kSources;
        const double got = golden::decode(golden::element(dst.data(), i, dtype), dtype);
        ASSERT_LE(std::fabs(static_cast<double>(got - exact)),
                  golden::sum_error_bound(values, dtype, op))
            << dtype_name(dtype) << " element " << i;
      }
    }
  }
}

#if defined(__x86_64__)
// A thread may have switched to flush-to-zero or to another rounding; reduce() must not care, and
// must switch back.
TEST(ReduceModes, TheCallersFloatingPointModesDoNotMatter) {
  const unsigned saved = _mm_getcsr();
  const unsigned foreign[] = {saved | 0x8040, saved | 0x2000,
                              saved | 0x6000};  // FTZ and DAZ; down; toward zero
  const uint64_t tiny = 3;
  for (const unsigned modes : foreign) {
    _mm_setcsr(modes);
    const uint64_t sum = reduce_one({tiny, tiny + 1}, Dtype::kFloat32, RedOp::kSum);
    const uint64_t up =
        reduce_one({0x3f800000, 0x33c00000}, Dtype::kFloat32, RedOp::kSum);  // 1 + 1.5 * 2^-24
    const unsigned after = _mm_getcsr();
    _mm_setcsr(saved);
    EXPECT_EQ(sum, 2 * tiny + 1);
    EXPECT_EQ(up, 0x3f800001u);
    EXPECT_EQ(after & ~0x3fu, modes & ~0x3fu);
  }
}
#endif

TEST(ReduceIsa, TheChosenOneIsTheWidestThatRuns) {
  Isa best = Isa::kGeneric;
  for (const Isa isa : kAllIsas)
    if (has_isa(isa)) best = isa;
  EXPECT_STREQ(reduce_isa(), isa_name(best));
}

}  // namespace
}  // namespace braid::coll
