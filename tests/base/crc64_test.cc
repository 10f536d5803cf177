#include "base/crc64.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace braid {
namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(std::string_view text) {
  Bytes out(text.size());
  std::memcpy(out.data(), text.data(), text.size());
  return out;
}

/// No two places have the same neighbourhood.
Bytes pattern(size_t size) {
  Bytes out(size);
  uint64_t word = 88172645463325252;
  for (std::byte& byte : out) {
    word ^= word << 13, word ^= word >> 7, word ^= word << 17;
    byte = static_cast<std::byte>(word >> 32);
  }
  return out;
}

class Crc64 : public testing::TestWithParam<CrcWay> {
 protected:
  void SetUp() override {
    if (!has_crc_way(GetParam())) GTEST_SKIP() << "not on this processor";
  }
  static uint64_t crc(std::span<const std::byte> bytes, uint64_t before = 0) {
    return crc64_by(GetParam(), bytes, before);
  }
};

// The first is the check value of catalogues, the others are the test cases of the NVM Command Set
// specification for its 64-bit guard.
TEST_P(Crc64, GivesThePublishedAnswers) {
  EXPECT_EQ(crc(bytes_of("123456789")), 0xAE8B14860A799888U);
  EXPECT_EQ(crc(Bytes(4096, std::byte{0})), 0x6482D367EB22B64EU);
  EXPECT_EQ(crc(Bytes(4096, std::byte{0xff})), 0xC0DDBA7302ECA3ACU);
  Bytes up(4096), down(4096);
  for (size_t i = 0; i < up.size(); ++i) {
    up[i] = static_cast<std::byte>(i);
    down[i] = static_cast<std::byte>(~i);
  }
  EXPECT_EQ(crc(up), 0x3E729F5F6750449CU);
  EXPECT_EQ(crc(down), 0x9A2DF64B8E9E517EU);
  EXPECT_EQ(crc({}), 0U);
}

/// Bit by bit, as the definition is written.
uint64_t defined(std::span<const std::byte> bytes) {
  uint64_t state = ~uint64_t{0};
  for (const std::byte byte : bytes) {
    state ^= static_cast<uint64_t>(byte);
    for (int bit = 0; bit < 8; ++bit)
      state = (state >> 1) ^ ((state & 1) != 0 ? 0x9a6c9329ac4bc9b5 : 0);
  }
  return ~state;
}

// Lengths on both sides of every step that a way takes, at every place of a cache line.
TEST_P(Crc64, IsTheDefinitionAtEveryLengthAndPlace) {
  const Bytes all = pattern(1300);
  for (size_t bytes = 0; bytes <= 1100; bytes += bytes < 330 ? 1 : 13)
    for (const size_t begin : {0, 1, 7, 8, 15, 31, 63}) {
      const auto part = std::span(all).subspan(begin, bytes);
      ASSERT_EQ(crc(part), defined(part)) << bytes << " bytes from " << begin << " on";
    }
}

TEST_P(Crc64, GoesOnWhereItStopped) {
  const Bytes all = pattern(5000);
  const uint64_t whole = crc(all);
  for (const size_t cut : {0, 1, 15, 16, 17, 63, 64, 255, 256, 257, 1024, 4999, 5000})
    EXPECT_EQ(crc(std::span(all).subspan(cut), crc(std::span(all).first(cut))), whole) << cut;
}

TEST_P(Crc64, TellsWhatWeakerSumsDoNot) {
  const Bytes all = pattern(1 << 16);
  const uint64_t whole = crc(all);
  for (const size_t bit : {0U, 511U, 77777U, (1U << 19) - 1}) {
    Bytes flipped = all;
    flipped[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_NE(crc(flipped), whole) << bit;
    // A second flip at the same place of another word, which a sum of words by xor takes back.
    flipped[(bit / 8 + 4096) % all.size()] ^= std::byte{1} << (bit % 8);
    EXPECT_NE(crc(flipped), whole) << bit;
  }
  Bytes swapped = all;  // a sum of words is the same
  std::swap_ranges(swapped.begin(), swapped.begin() + 8192, swapped.begin() + 8192);
  EXPECT_NE(crc(swapped), whole);
  EXPECT_NE(crc(Bytes(64)), crc(Bytes(65)));
}

std::string name_of(const testing::TestParamInfo<CrcWay>& way) {
  switch (way.param) {
    case CrcWay::kTables: return "Tables";
    case CrcWay::kClmul: return "Clmul";
    case CrcWay::kWideClmul: return "WideClmul";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(Ways, Crc64, testing::ValuesIn(kAllCrcWays), name_of);

TEST(Crc64OfRuns, IsOneTextOfThem) {
  const Bytes all = pattern(4096);
  const std::vector<uint64_t> begins = {4000, 0, 17, 2048};
  Bytes text;
  for (const uint64_t begin : begins)
    text.insert(text.end(), all.begin() + static_cast<std::ptrdiff_t>(begin),
                all.begin() + static_cast<std::ptrdiff_t>(begin) + 96);
  EXPECT_EQ(crc64_of_runs(all.data(), begins, 96), crc64(text));
  EXPECT_EQ(crc64_of_runs(all.data(), begins, 96, 7), crc64(text, 7));
  EXPECT_EQ(crc64_of_runs(all.data(), {}, 96), 0U);
  EXPECT_EQ(crc64_of_runs(all.data(), begins, 0, 7), 7U);
}

// Runs of several of the pieces in which it asks for memory ahead, and one that is no multiple.
TEST(Crc64OfRuns, TakesLongRunsInPieces) {
  const Bytes all = pattern(120'000);
  for (const size_t run : {4096, 8192, 20'001}) {
    const std::vector<uint64_t> begins = {0, 50'000, 3, 90'000, 31};
    Bytes text;
    for (const uint64_t begin : begins)
      text.insert(text.end(), all.data() + begin, all.data() + begin + run);
    EXPECT_EQ(crc64_of_runs(all.data(), begins, run), crc64(text)) << run;
  }
}

}  // namespace
}  // namespace braid
