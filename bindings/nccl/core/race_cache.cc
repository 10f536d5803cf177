#include "bindings/nccl/core/race_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "fabric/hash.h"
#include "fabric/json_read.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): some systems have none

namespace braid::nccl {

namespace {

constexpr const char* kFormat = "braid nccl race";
constexpr uint64_t kVersion = 1;
// Counts changes of how a race is run, and of how fast braid's calls are.
constexpr int kCodeRevision = 1;
constexpr size_t kMostTextBytes = 64 << 10, kMostNameBytes = 256, kMostFileBytes = 64 << 10;
constexpr uint64_t kMostNs = uint64_t{1} << 62;

/// Of NCCL's, not what it says and where it meets. Where a GPU has one queue for all streams nothing
/// of a call runs beside anything else of it.
bool is_of_speed(std::string_view variable) {
  return (variable.starts_with("NCCL_") && !variable.starts_with("NCCL_DEBUG") &&
          !variable.starts_with("NCCL_COMM_ID=")) ||
         variable.starts_with("CUDA_DEVICE_MAX_CONNECTIONS=");
}

/// Exact partials are twice or four times the bytes between nodes.
bool is_raced_under(std::string_view option, bool is_over_nodes) {
  return (option.starts_with("BRAID_GPU_") && option != "BRAID_GPU_SAMPLE") ||
         option == "BRAID_LINK_CAP" || (is_over_nodes && option == "BRAID_NCCL_NODES_EXACT");
}

std::string text_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return text;
}

const char* variable(const char* name) {
  const char* const value = secure_getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value != nullptr ? value : "";
}

/// NCCL_CONF_FILE or ~/.nccl.conf, and /etc/nccl.conf.
std::string nccl_files() {
  const std::string named = variable("NCCL_CONF_FILE");
  const std::string of_user = std::string(variable("HOME")) + "/.nccl.conf";
  return text_of_file(named.empty() ? of_user : named) + "\n" + text_of_file("/etc/nccl.conf");
}

std::string value_of(const Config& config, const Option& option) {
  switch (option.type) {
    case OptionType::kBytes: return fmt::format("{}", config.bytes(option.name));
    case OptionType::kInteger: return fmt::format("{}", config.integer(option.name));
    case OptionType::kBool: return config.flag(option.name) ? "on" : "off";
    default: return config.text(option.name);
  }
}

}  // namespace

std::string race_environment() {
  std::vector<std::string> found;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each)
    if (is_of_speed(*each)) found.emplace_back(*each);
  std::sort(found.begin(), found.end());
  std::string text;
  for (const std::string& line : found) text += line + "\n";
  return text + nccl_files();
}

std::string own_facts(const std::string& gpu, int driver_version) {
  return fmt::format("{} driver {} environment {}", gpu, driver_version,
                     fabric::text_hash(race_environment()));
}

std::string race_key(const Raced& raced, const Config& config) {
  std::string text =
      fmt::format("{} {} braid {} nccl {} config {:x} op {} sizes {} to {}\n", kFormat,
                  kCodeRevision, BRAID_VERSION, raced.nccl_version, raced.nccl_config,
                  static_cast<int>(raced.op), raced.sizes.begin, raced.sizes.end);
  for (const std::string& rank : raced.ranks) text += rank + "\n";
  if (raced.in_windows) text += "in windows\n";
  if (!raced.nodes.empty())
    text += "over nodes, by single calls behind two pauses, " + raced.nodes + "\n";
  for (const Option& option : all_options())
    if (is_raced_under(option.name, !raced.nodes.empty()))
      text += fmt::format("{}={}\n", option.name, value_of(config, option));
  return fabric::text_hash(text);
}

std::string race_to_json(const std::string& key, const KeptRace& kept) {
  const nlohmann::ordered_json json{{"format", kFormat},
                                    {"version", kVersion},
                                    {"key", key},
                                    {"ended_ns", kept.time_ns},
                                    {"measured", kept.choice.measured},
                                    {"won", kept.choice.won}};
  return json.dump(1) + "\n";
}

Result<KeptRace> parse_race(std::string_view text, const std::string& key) {
  constexpr uint64_t kAll = (uint64_t{1} << kNumRaced) - 1;
  const auto root = fabric::JsonReader::parse(text, "nccl race", kMostTextBytes);
  const std::string format = root.child("format").text(kMostNameBytes);
  if (format != kFormat) root.fail(fmt::format("format is '{}', not '{}'", format, kFormat));
  (void)root.child("version").integer(kVersion, kVersion);
  const std::string found = root.child("key").text(kMostNameBytes);
  if (!key.empty() && found != key)
    root.fail(fmt::format("is of key '{}', expected '{}'", found, key));
  KeptRace kept;
  kept.time_ns = static_cast<int64_t>(root.child("ended_ns").integer(0, kMostNs));
  kept.choice.measured = static_cast<uint32_t>(root.child("measured").integer(0, kAll));
  kept.choice.won = static_cast<uint32_t>(root.child("won").integer(0, kept.choice.measured));
  if ((kept.choice.won & ~kept.choice.measured) != 0)
    root.fail("says won of a size that was not measured");
  if (!root.ok()) return root.status();
  return kept;
}

}  // namespace braid::nccl
