// Units. Lengths are bytes in 64-bit integers named `_bytes`, times are nanoseconds named `_ns`,
// rates are GB/s = 1e9 bytes per second per direction, which equals bytes per nanosecond; sizes
// print in KiB/MiB/GiB.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace braid {

inline namespace literals {
constexpr uint64_t operator""_KiB(unsigned long long v) { return v << 10; }
constexpr uint64_t operator""_MiB(unsigned long long v) { return v << 20; }
constexpr uint64_t operator""_GiB(unsigned long long v) { return v << 30; }
constexpr int64_t operator""_us(unsigned long long v) { return static_cast<int64_t>(v) * 1'000; }
constexpr int64_t operator""_ms(unsigned long long v) {
  return static_cast<int64_t>(v) * 1'000'000;
}
constexpr int64_t operator""_s(unsigned long long v) {
  return static_cast<int64_t>(v) * 1'000'000'000;
}
}  // namespace literals

/// "64 MiB", "1.50 KiB", "12 B".
std::string format_bytes(uint64_t bytes);
/// "1.23 us", "45.6 ms", "3.20 s".
std::string format_ns(int64_t ns);
/// Reads "64MiB", "64M", "1.5 GiB", "4096" (bytes). M means MiB. invalid_argument names the text.
Result<uint64_t> parse_bytes(std::string_view text);
/// Reads "30s", "250ms", "5us", "10" (seconds) into nanoseconds.
Result<int64_t> parse_duration_ns(std::string_view text);
/// Reads a rate into bytes per nanosecond: "0.4" (GB/s), "400MB/s", "12GB/s", "800Mbit/s".
Result<double> parse_rate_gbps(std::string_view text);

}  // namespace braid
