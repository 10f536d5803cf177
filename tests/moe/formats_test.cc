// Formats against vectors made by another encoder, and against exact arithmetic.
#include "moe/formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "moe/reference.h"
#include "moe/routings.h"

namespace braid::moe {
namespace {

uint32_t crc32(const std::vector<uint8_t>& bytes) {
  uint32_t crc = ~0U;
  for (const uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xedb88320U & (0U - (crc & 1)));
  }
  return ~crc;
}

struct Cast {
  std::vector<uint8_t> bytes = std::vector<uint8_t>(kScaleBlock);
  float scale = 0;
};

Cast cast(const std::vector<float>& values, bool power_of_2) {
  Cast out;
  out.scale = cast_block(values.data(), out.bytes.data(), power_of_2);
  return out;
}

std::vector<float> vector_b() {
  std::vector<float> x(kScaleBlock);
  for (int i = 0; i < kScaleBlock; ++i) x[static_cast<size_t>(i)] = static_cast<float>(i - 64);
  return x;
}

TEST(MoeFormats, CastIsVectorB) {
  const Cast got = cast(vector_b(), false);
  EXPECT_EQ(std::bit_cast<uint32_t>(got.scale), 0x3E124925U);
  const std::pair<int, uint8_t> known[] = {{-64, 0xfe}, {-3, 0xda}, {-1, 0xce},
                                           {0, 0x00},   {1, 0x4e},  {3, 0x5a},
                                           {5, 0x61},   {37, 0x78}, {63, 0x7e}};
  for (const auto& [value, byte] : known)
    EXPECT_EQ(got.bytes[static_cast<size_t>(value + 64)], byte) << value;
  EXPECT_EQ(crc32(got.bytes), 0x9808E21FU);
  const Cast rounded = cast(vector_b(), true);
  EXPECT_EQ(rounded.scale, 0.25F);
  EXPECT_EQ(exponent_byte(rounded.scale), 125);
  EXPECT_EQ(crc32(rounded.bytes), 0x5B17754EU);
}

TEST(MoeFormats, ABlockOfZerosHasTheLeastScale) {
  const Cast got = cast(std::vector<float>(kScaleBlock), false);
  EXPECT_EQ(std::bit_cast<uint32_t>(got.scale), 0x346FACADU);
  EXPECT_EQ(got.bytes, std::vector<uint8_t>(kScaleBlock));
}

TEST(MoeFormats, ABlockWithNanOrInfComesOutAsNan) {
  for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF})
    for (const bool power_of_2 : {false, true}) {
      std::vector<float> x = vector_b();
      x[77] = bad;
      const Cast got = cast(x, power_of_2);
      EXPECT_EQ(got.bytes, std::vector<uint8_t>(kScaleBlock, 0x7f));
      EXPECT_EQ(got.scale, 1.0F);
    }
}

// The nearest of all 256 patterns, ties to the even one: by search.
uint8_t nearest_e4m3(float value) {
  uint8_t best = 0;
  double least = HUGE_VAL;
  for (int bits = 0; bits < 256; ++bits) {
    if ((bits & 0x7f) == 0x7f || std::signbit(value) != ((bits & 0x80) != 0)) continue;
    const double off = std::fabs(double{e4m3_to_float(static_cast<uint8_t>(bits))} - value);
    if (off < least || (off == least && bits % 2 == 0))
      least = off, best = static_cast<uint8_t>(bits);
  }
  return best;
}

TEST(MoeFormats, E4m3RoundsToTheNearest) {
  for (int bits = 0; bits < 256; ++bits) {
    if ((bits & 0x7f) == 0x7f) continue;
    EXPECT_EQ(float_to_e4m3(e4m3_to_float(static_cast<uint8_t>(bits))), bits);
  }
  uint32_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    state = state * 1664525 + 1013904223;
    const auto value = std::bit_cast<float>((state & 0x807fffff) | (105 + (state >> 8) % 32) << 23);
    EXPECT_EQ(float_to_e4m3(value), nearest_e4m3(value)) << value;
  }
  for (const float tie : {17.0F, 19.0F, 0.001953125F / 2, 3 * 0.001953125F / 2, 448.0F, 1e9F})
    EXPECT_EQ(float_to_e4m3(tie), nearest_e4m3(tie)) << tie;
  EXPECT_EQ(float_to_e4m3(std::nanf("")), 0x7f);
}

TEST(MoeFormats, Fp16AndBf16GoThereAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if ((bits & 0x7c00) != 0x7c00 || (bits & 0x3ff) == 0) {
      EXPECT_EQ(float_to_fp16(fp16_to_float(half)), half);
    }
    if ((bits & 0x7f80) != 0x7f80 || (bits & 0x7f) == 0) {
      EXPECT_EQ(float_to_bf16(bf16_to_float(half)), half);
    }
  }
  EXPECT_EQ(float_to_fp16(65520.0F), 0x7c00);  // halfway between the largest and infinity
  EXPECT_EQ(float_to_fp16(65519.0F), 0x7bff);
  EXPECT_EQ(float_to_fp16(0x1p-25F), 0);  // a tie: to zero
  EXPECT_EQ(float_to_fp16(0x1.8p-25F), 1);
  EXPECT_EQ(float_to_bf16(1.00390625F), 0x3f80);  // a tie: to the even one
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001U)))));
}

TEST(MoeFormats, RowsAreSummedInFp32WithEveryStepRounded) {
  const auto x = test::rows_of(1, 1, 600);
  std::vector<float> sum(300, 0.125F);
  add_weighted_row(Dtype::kBfloat16, x.data(), 0.3F, sum.data(), sum.size());
  for (size_t i = 0; i < sum.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, x.data() + 2 * i, 2);
    const volatile float product = 0.3F * bf16_to_float(bits);  // no fused multiply and add
    EXPECT_EQ(sum[i], 0.125F + product);
  }
}

// Vector A: expert e multiplies by e + 1, in whole numbers, so that every sum is exact.
TEST(MoeReference, VectorACombinesExactly) {
  const reference::Problem p = test::vector_a();
  std::vector<reference::Bytes> y(2);
  for (int rank = 0; rank < 2; ++rank)
    for (const reference::Row& row : reference::by_expert(p, rank)) {
      const int factor = rank * 2 + row.expert + 1;
      const auto& x = p.ranks[static_cast<size_t>(row.source)].rows;
      for (uint64_t i = 0; i < p.row_bytes / 2; ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, x.data() + static_cast<uint64_t>(row.token) * p.row_bytes + 2 * i, 2);
        bits = float_to_bf16(static_cast<float>(factor) * bf16_to_float(bits));
        const auto* const bytes = reinterpret_cast<const std::byte*>(&bits);
        y[static_cast<size_t>(rank)].insert(y[static_cast<size_t>(rank)].end(), bytes, bytes + 2);
      }
    }
  const std::vector<std::vector<float>> factors = {{1.5F, 3.0F, 3.5F}, {3.5F, 2.5F}};
  for (int owner = 0; owner < 2; ++owner) {
    const reference::Tokens& own = p.ranks[static_cast<size_t>(owner)];
    const auto out = reference::combine_low_latency(p, owner, Dtype::kBfloat16, y, own.weights);
    for (uint64_t i = 0; i < out.size() / 2; ++i) {
      uint16_t in = 0, got = 0;
      std::memcpy(&in, own.rows.data() + 2 * i, 2);
      std::memcpy(&got, out.data() + 2 * i, 2);
      const float factor = factors[static_cast<size_t>(owner)][i / (p.row_bytes / 2)];
      EXPECT_EQ(got, float_to_bf16(factor * bf16_to_float(in)));
    }
  }
}

TEST(MoeReference, VectorAIsReceivedBySource) {
  const auto zero = reference::by_source(test::vector_a(), 0, 1);
  EXPECT_EQ(zero.source_rank, (std::vector<int32_t>{0, 0, 1}));
  EXPECT_EQ(zero.source_token, (std::vector<int32_t>{0, 2, 1}));
  EXPECT_EQ(zero.ids, (std::vector<int64_t>{0, 1, 1, -1, 0, -1}));
  EXPECT_EQ(zero.rows_per_expert, (std::vector<int32_t>{2, 2}));
  const auto one = reference::by_source(test::vector_a(), 1, 4);
  EXPECT_EQ(one.source_token, (std::vector<int32_t>{1, 2, 0, 1}));
  EXPECT_EQ(one.ids, (std::vector<int64_t>{0, -1, -1, 1, 1, 0, -1, 1}));
  EXPECT_EQ(one.rows_per_expert, (std::vector<int32_t>{4, 4}));
}

}  // namespace
}  // namespace braid::moe
