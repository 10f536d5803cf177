#include "coll/reduce/casts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "coll/reduce/convert.h"
#include "support/tensors.h"

namespace braid::coll {
namespace {

template <typename Bits>
Bits narrowed(float value, Dtype dtype) {
  Bits bits = 0;
  narrow(&value, &bits, 1, dtype);
  return bits;
}

/// Every number of the type, against the conversions that are tested against the formats' rules.
template <typename Bits, typename ToFloat>
void check_widen(Dtype dtype, ToFloat to_float) {
  for (uint32_t i = 0; i <= std::numeric_limits<Bits>::max(); ++i) {
    const auto bits = static_cast<Bits>(i);
    const float wanted = to_float(bits);
    float wide = 0;
    widen(&bits, &wide, 1, dtype);
    ASSERT_TRUE(std::isnan(wanted) ? std::isnan(wide)
                                   : std::memcmp(&wide, &wanted, sizeof wide) == 0)
        << dtype_name(dtype) << " " << i;
    if (!std::isfinite(wanted)) continue;  // of which fp8 keeps none
    ASSERT_EQ(narrowed<Bits>(wide, dtype), bits) << dtype_name(dtype);
  }
}

template <typename Bits, typename FromFloat>
void check_narrow(Dtype dtype, FromFloat from_float) {
  for (uint64_t i = 0; i < 200'000; ++i) {
    const auto word = static_cast<uint32_t>(test::mixed(7, 1, i));
    float value = 0;
    std::memcpy(&value, &word, sizeof value);
    if (std::isnan(value)) continue;
    ASSERT_EQ(narrowed<Bits>(value, dtype), from_float(value)) << dtype_name(dtype) << " " << value;
  }
}

TEST(Casts, WidenEveryNumberAndBack) {
  check_widen<uint16_t>(Dtype::kFloat16, fp16_to_float);
  check_widen<uint16_t>(Dtype::kBfloat16, bf16_to_float);
  check_widen<uint8_t>(Dtype::kFloat8E4m3, e4m3_to_float);
  check_widen<uint8_t>(Dtype::kFloat8E5m2, e5m2_to_float);
}

TEST(Casts, NarrowAsReduceRounds) {
  check_narrow<uint16_t>(Dtype::kFloat16, float_to_fp16);
  check_narrow<uint16_t>(Dtype::kBfloat16, float_to_bf16);
  check_narrow<uint8_t>(Dtype::kFloat8E4m3, float_to_e4m3);
  check_narrow<uint8_t>(Dtype::kFloat8E5m2, float_to_e5m2);
}

// Arrays of any length and at any address.
TEST(Casts, CastWholeArrays) {
  std::vector<float> wide(1001);
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<float>(i) * 0.25F - 100;
  std::vector<uint16_t> small(1002, 0xeeee);
  narrow(wide.data(), small.data(), wide.size(), Dtype::kBfloat16);
  for (size_t i = 0; i < wide.size(); ++i) ASSERT_EQ(small[i], float_to_bf16(wide[i])) << i;
  EXPECT_EQ(small.back(), 0xeeee);
}

TEST(Casts, OnlySumsAndProductsOfSmallerFloatsRound) {
  EXPECT_TRUE(rounds_partials(Dtype::kBfloat16, RedOp::kAvg));
  EXPECT_FALSE(rounds_partials(Dtype::kBfloat16, RedOp::kMax));
  EXPECT_FALSE(rounds_partials(Dtype::kFloat32, RedOp::kSum));
  EXPECT_FALSE(rounds_partials(Dtype::kInt8, RedOp::kSum));
}

}  // namespace
}  // namespace braid::coll
