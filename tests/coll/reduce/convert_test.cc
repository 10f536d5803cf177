// The small floats against their definition: every pattern up, every pattern and all its rounding
// neighbours down.
#include "coll/reduce/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "support/golden.h"

namespace braid::coll {
namespace {

struct Format {
  Dtype dtype;
  uint32_t patterns;
  float (*up)(uint32_t);
  uint32_t (*down)(float);
};

const Format kFormats[] = {
    {Dtype::kFloat16, 65536, [](uint32_t b) { return fp16_to_float(static_cast<uint16_t>(b)); },
     [](float v) { return uint32_t{float_to_fp16(v)}; }},
    {Dtype::kBfloat16, 65536, [](uint32_t b) { return bf16_to_float(static_cast<uint16_t>(b)); },
     [](float v) { return uint32_t{float_to_bf16(v)}; }},
    {Dtype::kFloat8E4m3, 256, [](uint32_t b) { return e4m3_to_float(static_cast<uint8_t>(b)); },
     [](float v) { return uint32_t{float_to_e4m3(v)}; }},
    {Dtype::kFloat8E5m2, 256, [](uint32_t b) { return e5m2_to_float(static_cast<uint8_t>(b)); },
     [](float v) { return uint32_t{float_to_e5m2(v)}; }},
};

class Convert : public testing::TestWithParam<Format> {
 protected:
  void expect_rounds_as_defined(float value) {
    const Format& f = GetParam();
    ASSERT_EQ(f.down(value), golden::encode(value, f.dtype))
        << dtype_name(f.dtype) << " of " << value;
  }
};

TEST_P(Convert, EveryPatternHasItsValue) {
  const Format& f = GetParam();
  for (uint32_t bits = 0; bits < f.patterns; ++bits) {
    const float value = f.up(bits);
    if (golden::is_nan(bits, f.dtype)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      continue;
    }
    const double expected = golden::decode(bits, f.dtype);
    ASSERT_EQ(static_cast<double>(value), expected) << bits;
    ASSERT_EQ(std::signbit(value), std::signbit(expected)) << bits;
  }
}

TEST_P(Convert, EveryNumberSurvivesTheRoundTrip) {
  const Format& f = GetParam();
  for (uint32_t bits = 0; bits < f.patterns; ++bits) {
    if (golden::is_nan(bits, f.dtype)) continue;
    const float value = f.up(bits);
    if (std::isinf(value) && f.dtype == Dtype::kFloat8E5m2)
      continue;  // saturates: its own test below
    ASSERT_EQ(f.down(value), bits);
  }
}

// Between neighbours a < b: the tie goes to the even one, and the fp32 numbers beside the tie go to
// the nearer one.
TEST_P(Convert, EveryTieGoesToEven) {
  const Format& f = GetParam();
  const float inf = std::numeric_limits<float>::infinity();
  for (uint32_t bits = 0; bits + 1 < f.patterns / 2; ++bits) {
    const float a = f.up(bits);
    const float b = f.up(bits + 1);
    if (!std::isfinite(a) || !std::isfinite(b)) continue;
    const auto middle = static_cast<float>((static_cast<double>(a) + b) / 2);
    ASSERT_EQ(f.down(middle), bits + (bits & 1)) << "tie above " << bits;
    ASSERT_EQ(f.down(-middle), (bits + (bits & 1)) | f.patterns / 2);
    ASSERT_EQ(f.down(std::nextafter(middle, -inf)), bits);
    ASSERT_EQ(f.down(std::nextafter(middle, inf)), bits + 1);
    ASSERT_EQ(f.down(std::nextafter(b, -inf)), bits + 1);
    ASSERT_EQ(f.down(std::nextafter(a, inf)), bits == 0 && f.dtype == Dtype::kBfloat16 ? 0 : bits);
  }
}

TEST_P(Convert, AGridOverAllFloatsRoundsAsDefined) {
  // A step coprime to the field sizes walks all exponents and many fractions; the last bits differ
  // at each step.
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 99'991) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isnan(value)) continue;
    expect_rounds_as_defined(value);
    if (HasFatalFailure()) return;
  }
}

TEST_P(Convert, EdgesOfTheRange) {
  const Format& f = GetParam();
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> edges = {0.0f,
                              -0.0f,
                              inf,
                              -inf,
                              std::numeric_limits<float>::max(),
                              std::numeric_limits<float>::denorm_min(),
                              std::numeric_limits<float>::min()};
  for (uint32_t bits = 0; bits < f.patterns; ++bits) {
    const float value = f.up(bits);
    if (std::isnan(value)) continue;
    for (const float near :
         {std::nextafter(value, inf), std::nextafter(value, -inf), value * 1.5f, value * 0.5f})
      if (!std::isnan(near)) edges.push_back(near);
  }
  for (const float value : edges) {
    expect_rounds_as_defined(value);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(SmallFloats, Convert, testing::ValuesIn(kFormats), [](const auto& param) {
  return std::string(dtype_name(param.param.dtype));
});

TEST(ConvertNan, PayloadAndSignAreKeptAndQuietened) {
  EXPECT_EQ(std::bit_cast<uint32_t>(fp16_to_float(0x7d55)),
            0x7feaa000u);  // signalling: quiet bit set
  EXPECT_EQ(std::bit_cast<uint32_t>(fp16_to_float(0xfe01)), 0xffc02000u);
  EXPECT_EQ(std::bit_cast<uint32_t>(bf16_to_float(0xff81)), 0xffc10000u);
  EXPECT_EQ(std::bit_cast<uint32_t>(e5m2_to_float(0x7d)), 0x7fe00000u);
  EXPECT_EQ(float_to_fp16(std::bit_cast<float>(0xffd54000u)), 0xfeaa);
  EXPECT_EQ(float_to_fp16(std::bit_cast<float>(0x7f800001u)), 0x7e00);  // payload lost, still NaN
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x7f800001u)), 0x7fc0);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0xffabcdefu)), 0xffeb);
}

TEST(ConvertNan, EveryFp16NanKeepsItsPayload) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    if (!golden::is_nan(bits, Dtype::kFloat16)) continue;
    ASSERT_EQ(float_to_fp16(fp16_to_float(static_cast<uint16_t>(bits))), bits | 0x0200);
  }
}

TEST(ConvertNan, Fp8HasOneNanOnTheWayDown) {
  for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xffc00000u, 0xffffffffu}) {
    EXPECT_EQ(float_to_e4m3(std::bit_cast<float>(bits)), 0x7f);
    EXPECT_EQ(float_to_e5m2(std::bit_cast<float>(bits)), 0x7f);
  }
}

TEST(ConvertFp8, SaturatesInsteadOfOverflowing) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float v : {448.0f, 449.0f, 464.0f, 480.0f, 1e30f, inf}) {
    EXPECT_EQ(float_to_e4m3(v), 0x7e) << v;
    EXPECT_EQ(float_to_e4m3(-v), 0xfe) << v;
  }
  for (const float v : {57344.0f, 60000.0f, 61440.0f, 65536.0f, 1e30f, inf}) {
    EXPECT_EQ(float_to_e5m2(v), 0x7b) << v;
    EXPECT_EQ(float_to_e5m2(-v), 0xfb) << v;
  }
}

}  // namespace
}  // namespace braid::coll
