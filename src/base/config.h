// The option registry: every BRAID_ variable is one row {name, type, default, help, audience}, so help
// text cannot be missing, docs/config.md is generated from those for users, and an unknown BRAID_ variable is warned
// about with the nearest name. Values are read once, at Config::from_environment(); tests set()
// them on a Config of their own.
//
// Threads: a Config is filled by one thread and read-only afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace braid {

enum class OptionType { kString, kBool, kInteger, kBytes, kDuration };

/// Whose an option is. Those of tuning and measuring sessions are read like all others, and are in
/// no document: they go with the mechanism that they adjust.
enum class OptionAudience { kUsers, kTuning };

struct Option {
  const char* name;  // with the BRAID_ prefix
  OptionType type;
  const char* default_value;  // as a user would write it
  const char* help;           // one sentence
  OptionAudience audience = OptionAudience::kUsers;
};

/// All options, sorted by name.
std::span<const Option> all_options();

class Config {
 public:
  /// Reads every known option from `environ`; an empty one counts as not set. A malformed value is
  /// invalid_argument naming variable, text and the expected form. `warnings` (may be null) receives one line per unknown
  /// BRAID_ variable, with the nearest name.
  static Result<Config> from_environment(std::vector<std::string>* warnings = nullptr);
  /// The same from name/value pairs, for tests and fuzzers.
  static Result<Config> from_pairs(const std::map<std::string, std::string>& pairs,
                                   std::vector<std::string>* warnings = nullptr);
  Config();  // all defaults

  Status set(std::string_view name, std::string_view value);
  bool is_set(std::string_view name) const;

  // Typed reads. Asking for a name that is not in the registry, or by the wrong type, is our bug
  // and aborts.
  const std::string& text(std::string_view name) const;
  bool flag(std::string_view name) const;
  int64_t integer(std::string_view name) const;
  uint64_t bytes(std::string_view name) const;
  int64_t duration_ns(std::string_view name) const;

 private:
  const std::string& text_of(const Option& option) const;

  std::map<std::string, std::string, std::less<>> values_;  // only what was set; checked when set
};

}  // namespace braid
