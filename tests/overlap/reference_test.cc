#include "overlap/reference.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace braid::overlap::reference {
namespace {

TEST(Reference, RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(rounded(Dtype::kBfloat16, 257), 256);  // 8 significant bits: a tie
  EXPECT_EQ(rounded(Dtype::kBfloat16, 259), 260);
  EXPECT_EQ(rounded(Dtype::kBfloat16, -257.5F), -258);
  EXPECT_EQ(rounded(Dtype::kFloat16, 2049), 2048);  // 11 bits
  EXPECT_EQ(rounded(Dtype::kFloat16, 2051), 2052);
  EXPECT_EQ(rounded(Dtype::kFloat16, std::ldexp(1.0F, -25)), 0) << "half of the smallest";
  EXPECT_TRUE(std::isinf(rounded(Dtype::kFloat16, 70'000)));
}

TEST(Reference, BothOrdersOfTheWeightsAreTheSameProduct) {
  const std::array<float, 6> a{1, 2, 3, 4, 5, 6};    // [2, 3]
  const std::array<float, 6> nk{1, 0, 2, 0, 1, -1};  // [2, 3]
  const std::array<float, 6> kn{1, 0, 0, 1, 2, -1};  // [3, 2]
  const std::vector<float> wanted{7, -1, 16, -1};
  EXPECT_EQ(product({2, 2, 3, false}, a, nk), wanted);
  EXPECT_EQ(product({2, 2, 3, true}, a, kn), wanted);
}

// 257 is a tie of bfloat16: what of it is left says who rounded it, and how often.
TEST(Reference, PartsAreRoundedButForTheOwners) {
  const std::array<float, 2> products{257, 1};
  EXPECT_EQ(reduced(Dtype::kBfloat16, products, 0, 0), 258);
  EXPECT_EQ(reduced(Dtype::kBfloat16, products, 1, 0), 256) << "256 + 1, a tie again";
  EXPECT_EQ(exchanged(Dtype::kBfloat16, products, 0), 256);
  EXPECT_EQ(reduced(Dtype::kBfloat16, products, 1, 1), 258) << "the bias comes before the rounding";
}

// In fp32, 2^24 + 1 is 2^24: the order of the ranks shows.
TEST(Reference, RanksAreAddedInTheirOrder) {
  const float large = std::ldexp(1.0F, 24);
  const std::array<float, 3> first{large, 1, -large}, last{large, -large, 1};
  EXPECT_EQ(reduced(Dtype::kBfloat16, first, 0, 0), 0);
  EXPECT_EQ(reduced(Dtype::kBfloat16, last, 0, 0), 1);
}

}  // namespace
}  // namespace braid::overlap::reference
