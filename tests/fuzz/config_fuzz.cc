// Lines of NAME=VALUE as an environment: whatever they hold, Config answers with a Status or with
// values that can be read by their type, and every message and warning stays one short printable
// line.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/config.h"

namespace {

void check_line(std::string_view line) {
  BRAID_CHECK(line.size() < 600, "line of {} characters", line.size());
  for (const char c : line) BRAID_CHECK(c >= ' ' && c <= '~', "byte {:#x} in a line", c);
}

void read_all(const braid::Config& config) {
  for (const braid::Option& option : braid::all_options()) switch (option.type) {
      case braid::OptionType::kString: config.text(option.name); break;
      case braid::OptionType::kBool: config.flag(option.name); break;
      case braid::OptionType::kInteger:
        BRAID_CHECK(config.integer(option.name) >= 0, "negative");
        break;
      case braid::OptionType::kBytes: config.bytes(option.name); break;
      case braid::OptionType::kDuration:
        BRAID_CHECK(config.duration_ns(option.name) >= 0, "negative");
        break;
    }
}

std::map<std::string, std::string> pairs_of(std::string_view text) {
  std::map<std::string, std::string> pairs;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const size_t equals = line.find('=');
    if (equals != std::string_view::npos)
      pairs.emplace(line.substr(0, equals), line.substr(equals + 1));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return pairs;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> warnings;
  const auto config =
      braid::Config::from_pairs(pairs_of({reinterpret_cast<const char*>(data), size}), &warnings);
  for (const std::string& line : warnings) check_line(line);
  if (config.ok())
    read_all(config.value());
  else
    check_line(config.status().message());
  return 0;
}
