// Sizes, durations, rates, log specs and dtype names: any text gives a value in range or one
// printable line.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/dtype.h"
#include "base/log.h"
#include "base/text.h"
#include "base/units.h"

namespace {

void check_message(const braid::Status& status) {
  for (const char c : status.message())
    BRAID_CHECK(c >= ' ' && c <= '~', "byte {:#x} in a message", c);
}

void check_size(std::string_view text) {
  const auto bytes = braid::parse_bytes(text);
  check_message(bytes.status());
  // What is printed reads back to within the two decimals that are printed (and may round up past
  // 64 bits).
  if (!bytes.ok() || bytes.value() >> 62 != 0) return;
  const double again =
      static_cast<double>(braid::parse_bytes(braid::format_bytes(bytes.value())).value());
  const auto once = static_cast<double>(bytes.value());
  BRAID_CHECK(std::abs(again - once) <= 0.006 * once, "{} printed and read is {}", once, again);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_size(text);
  const auto ns = braid::parse_duration_ns(text);
  check_message(ns.status());
  if (ns.ok())
    BRAID_CHECK(ns.value() >= 0 && !braid::format_ns(ns.value()).empty(), "{} ns", ns.value());
  const auto rate = braid::parse_rate_gbps(text);
  check_message(rate.status());
  if (rate.ok())
    BRAID_CHECK(rate.value() > 0 && std::isfinite(rate.value()), "{} GB/s", rate.value());
  braid::log::configure(text);
  BRAID_CHECK(braid::printable(text).size() <= 67, "too long");
  braid::split(text, ',');
  return 0;
}
