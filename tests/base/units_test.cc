#include "base/units.h"

#include <gtest/gtest.h>

#include <limits>

namespace braid {
namespace {

TEST(FormatBytes, ShowsWholeUnitsWithoutDecimals) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(12), "12 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(64_MiB), "64 MiB");
  EXPECT_EQ(format_bytes(3_GiB), "3 GiB");
  EXPECT_EQ(format_bytes(2048_GiB), "2048 GiB");
}

TEST(FormatBytes, NeverPrintsAThousandAndTwentyFourOfAUnit) {
  EXPECT_EQ(format_bytes(1_MiB - 1), "1.00 MiB");
  EXPECT_EQ(format_bytes(1_GiB - 1), "1.00 GiB");
}

TEST(FormatBytes, KeepsAllDigitsOfTheLargestNumber) {
  EXPECT_EQ(format_bytes(std::numeric_limits<uint64_t>::max()), "17179869184.00 GiB");
}

TEST(FormatNs, ShowsThreeDigits) {
  EXPECT_EQ(format_ns(0), "0 ns");
  EXPECT_EQ(format_ns(999), "999 ns");
  EXPECT_EQ(format_ns(1'234), "1.23 us");
  EXPECT_EQ(format_ns(45'600'000), "45.6 ms");
  EXPECT_EQ(format_ns(3_s + 200_ms), "3.20 s");
  EXPECT_EQ(format_ns(999'700), "1.00 ms");
  EXPECT_EQ(format_ns(9'996), "10.0 us");
  EXPECT_EQ(format_ns(-1'500), "-1.50 us");
  EXPECT_EQ(format_ns(3600_s), "3600 s");
}

TEST(ParseBytes, ReadsBinaryUnitsInAnyCase) {
  EXPECT_EQ(parse_bytes("4096").value(), 4096u);
  EXPECT_EQ(parse_bytes("64MiB").value(), 64_MiB);
  EXPECT_EQ(parse_bytes("64M").value(), 64_MiB);
  EXPECT_EQ(parse_bytes("64mib").value(), 64_MiB);
  EXPECT_EQ(parse_bytes(" 1.5 GiB ").value(), 1536_MiB);
  EXPECT_EQ(parse_bytes("7B").value(), 7u);
  EXPECT_EQ(parse_bytes(".5k").value(), 512u);
  EXPECT_EQ(parse_bytes("0").value(), 0u);
}

TEST(ParseBytes, KeepsEveryBitOfAWholeNumber) {
  EXPECT_EQ(parse_bytes("18446744073709551615").value(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(parse_bytes("9007199254740993").value(), 9007199254740993u);
}

TEST(ParseBytes, RefusesWhatIsNotASize) {
  for (const char* text : {"", " ", "MiB", "64MB", "64 QiB", "-1", "+1", "1e9", "inf", "nan",
                           "0x10", "1,5M", "1 2", "1M M"})
    EXPECT_EQ(parse_bytes(text).status().code(), Code::kInvalidArgument) << text;
}

TEST(ParseBytes, RefusesWhatDoesNotFit) {
  for (const char* text : {"18446744073709551616", "16777216TiB", "99999999999999999999999G"})
    EXPECT_FALSE(parse_bytes(text).ok()) << text;
}

TEST(ParseBytes, NamesTheTextInItsMessage) {
  EXPECT_NE(parse_bytes("64MB").status().message().find("'64MB'"), std::string::npos);
  const std::string hostile = parse_bytes(std::string(10'000, '\n')).status().message();
  EXPECT_LT(hostile.size(), 300u);
  EXPECT_EQ(hostile.find('\n'), std::string::npos);
}

TEST(ParseDuration, ReadsUnitsAndTakesABareNumberAsSeconds) {
  EXPECT_EQ(parse_duration_ns("30s").value(), 30_s);
  EXPECT_EQ(parse_duration_ns("250ms").value(), 250_ms);
  EXPECT_EQ(parse_duration_ns("5us").value(), 5_us);
  EXPECT_EQ(parse_duration_ns("7ns").value(), 7);
  EXPECT_EQ(parse_duration_ns("2min").value(), 120_s);
  EXPECT_EQ(parse_duration_ns("1h").value(), 3600_s);
  EXPECT_EQ(parse_duration_ns("10").value(), 10_s);
  EXPECT_EQ(parse_duration_ns("0.5 s").value(), 500_ms);
  EXPECT_EQ(parse_duration_ns("0").value(), 0);
}

TEST(ParseDuration, RefusesWhatIsNotADuration) {
  for (const char* text : {"", "s", "-1s", "5 parsecs", "1e3s", "5S", "3000000h", "nan"})
    EXPECT_EQ(parse_duration_ns(text).status().code(), Code::kInvalidArgument) << text;
}

TEST(ParseRate, ReadsBytesAndBits) {
  EXPECT_DOUBLE_EQ(parse_rate_gbps("0.4").value(), 0.4);
  EXPECT_DOUBLE_EQ(parse_rate_gbps("400MB/s").value(), 0.4);
  EXPECT_DOUBLE_EQ(parse_rate_gbps("12GB/s").value(), 12);
  EXPECT_DOUBLE_EQ(parse_rate_gbps("800Mbit/s").value(), 0.1);
  EXPECT_DOUBLE_EQ(parse_rate_gbps("8 Gbit/s").value(), 1);
  EXPECT_DOUBLE_EQ(parse_rate_gbps("64kB/s").value(), 64e-6);
}

TEST(ParseRate, RefusesZeroAndWhatIsNotARate) {
  for (const char* text : {"0", "0MB/s", "", "-1", "fast", "5MB", "5 Mb/s", "inf", "400mb/s"})
    EXPECT_EQ(parse_rate_gbps(text).status().code(), Code::kInvalidArgument) << text;
}

}  // namespace
}  // namespace braid
