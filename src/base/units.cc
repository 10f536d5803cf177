#include "base/units.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <span>

#include "base/text.h"

namespace braid {

namespace {

struct Unit {
  std::string_view name;
  double factor;
};

// Powers of two: message and buffer sizes. Decimal names (KB, MB) are refused rather than guessed
// at, because half of all tools mean 1000 by them and the other half 1024.
constexpr Unit kByteUnits[] = {{"", 1},
                               {"b", 1},
                               {"k", 1024},
                               {"kib", 1024},
                               {"m", 1048576},
                               {"mib", 1048576},
                               {"g", 1073741824},
                               {"gib", 1073741824},
                               {"t", 1099511627776},
                               {"tib", 1099511627776}};
constexpr Unit kTimeUnits[] = {{"", 1e9},  {"ns", 1},     {"us", 1e3},  {"ms", 1e6},
                               {"s", 1e9}, {"min", 6e10}, {"h", 3.6e12}};
// Into bytes per nanosecond; powers of ten, and case matters: b is never a byte, so only bit/s is
// taken for bits.
constexpr Unit kRateUnits[] = {
    {"", 1},          {"B/s", 1e-9}, {"kB/s", 1e-6},      {"KB/s", 1e-6},      {"MB/s", 1e-3},
    {"GB/s", 1},      {"TB/s", 1e3}, {"kbit/s", 1.25e-7}, {"Kbit/s", 1.25e-7}, {"Mbit/s", 1.25e-4},
    {"Gbit/s", 0.125}};

const Unit* find_unit(std::span<const Unit> units, std::string_view name) {
  for (const Unit& unit : units)
    if (unit.name == name) return &unit;
  return nullptr;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

struct Quantity {
  double number;
  std::string_view unit;
};

// A plain decimal number and whatever follows it. from_chars, because strtod follows the user's
// locale, and fixed, because "1e9" and "inf" are never what someone meant by a size.
bool read_quantity(std::string_view text, Quantity* out) {
  text = trim(text);
  if (text.empty() || !(text[0] == '.' || (text[0] >= '0' && text[0] <= '9'))) return false;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, out->number, std::chars_format::fixed);
  if (read.ec != std::errc() || !std::isfinite(out->number)) return false;
  out->unit = trim(std::string_view(read.ptr, static_cast<size_t>(end - read.ptr)));
  return true;
}

// Whole numbers are read as integers first: a double keeps only 53 bits of them.
bool read_whole(std::string_view text, uint64_t* out) {
  text = trim(text);
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, *out);
  return read.ec == std::errc() && read.ptr == end;
}

// `value` with as many decimals as make three digits of it.
std::string three_digits(double value, const char* unit) {
  const double size = std::abs(value);
  const int decimals = size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, unit);
}

}  // namespace

std::string format_bytes(uint64_t bytes) {
  constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB"};
  // 1023.995 prints as 1024.00 in two decimals, so it belongs to the next unit already.
  auto value = static_cast<double>(bytes);
  int unit = 0;
  for (; unit < 3 && value >= 1023.995; ++unit) value /= 1024;
  const bool is_whole = bytes % (uint64_t{1} << (10 * unit)) == 0;
  if (is_whole) return fmt::format("{} {}", bytes >> (10 * unit), kNames[unit]);
  return fmt::format("{:.2f} {}", value, kNames[unit]);
}

std::string format_ns(int64_t ns) {
  const auto value = static_cast<double>(ns);
  const double size = std::abs(value);
  if (size < 1e3) return fmt::format("{} ns", ns);
  if (size < 999.5e3) return three_digits(value / 1e3, "us");
  if (size < 999.5e6) return three_digits(value / 1e6, "ms");
  return three_digits(value / 1e9, "s");
}

Result<uint64_t> parse_bytes(std::string_view text) {
  uint64_t whole = 0;
  if (read_whole(text, &whole)) return whole;
  Quantity q{};
  const Unit* unit = read_quantity(text, &q) ? find_unit(kByteUnits, lower(q.unit)) : nullptr;
  if (!unit)
    return invalid_argument(
        "'{}' is not a size; write 4096, 64KiB, 1.5MiB or 2GiB (K, M and G are powers of 1024)",
        printable(text));
  const double bytes = q.number * unit->factor;
  if (bytes >= std::ldexp(1.0, 64))
    return invalid_argument("size '{}' does not fit in 64 bits", printable(text));
  return static_cast<uint64_t>(bytes);
}

Result<int64_t> parse_duration_ns(std::string_view text) {
  Quantity q{};
  const Unit* unit = read_quantity(text, &q) ? find_unit(kTimeUnits, q.unit) : nullptr;
  if (!unit)
    return invalid_argument(
        "'{}' is not a duration; write 30s, 250ms, 5us, 100ns, 2min or 10 (seconds)",
        printable(text));
  const double ns = q.number * unit->factor;
  // Half the range of int64, so that a deadline (now + duration) cannot overflow either.
  if (ns > static_cast<double>(std::numeric_limits<int64_t>::max()) / 2)
    return invalid_argument("duration '{}' is longer than 146 years", printable(text));
  return static_cast<int64_t>(std::llround(ns));
}

Result<double> parse_rate_gbps(std::string_view text) {
  Quantity q{};
  const Unit* unit = read_quantity(text, &q) ? find_unit(kRateUnits, q.unit) : nullptr;
  if (!unit)
    return invalid_argument("'{}' is not a rate; write 400MB/s, 12GB/s, 800Mbit/s or 0.4 (GB/s)",
                            printable(text));
  const double rate = q.number * unit->factor;
  if (!(rate > 0)) return invalid_argument("rate '{}' must be above zero", printable(text));
  return rate;
}

}  // namespace braid
