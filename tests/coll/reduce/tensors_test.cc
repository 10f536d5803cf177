// The test data itself: reproducible in parts, different by place and rank, and with the patterns
// it promises.
#include "support/tensors.h"

#include <gtest/gtest.h>

#include <set>

namespace braid::test {
namespace {

class TensorsOf : public testing::TestWithParam<Dtype> {};

TEST_P(TensorsOf, APartIsThePartOfTheWhole) {
  for (const Fill fill : kAllFills) {
    const Tensors data{fill, GetParam(), 4, 7};
    const golden::Array whole = data.of(2, 0, 200);
    const golden::Array part = data.of(2, 50, 100);
    const size_t bytes = dtype_bytes(GetParam());
    EXPECT_EQ(first_difference(whole.data() + 50 * bytes, part, GetParam()), "");
  }
}

TEST_P(TensorsOf, PlacesRanksAndSeedsDiffer) {
  for (const Fill fill : kAllFills) {
    const Tensors data{fill, GetParam(), 4, 7};
    const golden::Array tensor = data.of(1, 0, 100);
    EXPECT_NE(tensor, data.of(1, 1, 100));
    EXPECT_NE(tensor, data.of(1, 16, 100));
    EXPECT_NE(tensor, data.of(2, 0, 100));
    EXPECT_NE(tensor, (Tensors{fill, GetParam(), 4, 8}.of(1, 0, 100)));
  }
}

TEST_P(TensorsOf, RandomBitsHoldEverySpecialPattern) {
  const golden::Array tensor = Tensors{Fill::kRandomBits, GetParam(), 2, 1}.of(0, 0, 4000);
  std::set<uint64_t> seen;
  for (uint64_t i = 0; i < 4000; ++i) seen.insert(golden::element(tensor.data(), i, GetParam()));
  for (const uint64_t pattern : special_patterns(GetParam()))
    EXPECT_TRUE(seen.contains(pattern)) << pattern;
}

INSTANTIATE_TEST_SUITE_P(All, TensorsOf, testing::ValuesIn(kAllDtypes),
                         [](const auto& param) { return std::string(dtype_name(param.param)); });

TEST(ExactSums, EveryPartialSumIsANumberOfTheDtype) {
  for (const Dtype dtype : kAllDtypes)
    for (const int num_ranks : {2, 4, 8, 20}) {
      if (!golden::is_float(dtype)) continue;  // integers wrap, so they are exact always
      const auto operands = Tensors{Fill::kExactSum, dtype, num_ranks, 3}.all(0, 500);
      for (uint64_t i = 0; i < 500; ++i) {
        double sum = 0;
        for (const golden::Array& operand : operands) {
          sum += golden::decode(golden::element(operand.data(), i, dtype), dtype);
          ASSERT_EQ(golden::decode(golden::encode(sum, dtype), dtype), sum) << dtype_name(dtype);
        }
      }
    }
}

TEST(FirstDifference, NamesTheElement) {
  const golden::Array want(8, std::byte{1});
  golden::Array got = want;
  EXPECT_EQ(first_difference(got, want, Dtype::kInt16), "");
  got[5] = std::byte{2};
  EXPECT_EQ(first_difference(got, want, Dtype::kInt16), "int16 element 2: got 0x201, want 0x101");
  got.pop_back();
  EXPECT_EQ(first_difference(got, want, Dtype::kInt16), "got 7 bytes, want 8");
}

}  // namespace
}  // namespace braid::test
