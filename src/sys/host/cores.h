// The cores that threads run on.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "base/status.h"

namespace braid::sys {

/// Cores by the kernel's numbers.
using CoreSet = std::set<int>;

/// As sysfs writes them: "0-47,96-143". invalid_argument for other text.
Result<CoreSet> parse_cores(std::string_view text);
std::string text_of(const CoreSet& cores);

/// Threads: any; each call is about the one that calls.
class Cores {
 public:
  virtual ~Cores() = default;
  /// Those that the calling thread may run on, which a cgroup's cpuset has bounded already. Empty when
  /// the kernel does not say.
  virtual CoreSet usable() = 0;
  /// The calling thread's from now on, and those of threads that it begins. driver: the kernel refused,
  /// and nothing has changed.
  virtual Status use(const CoreSet& cores) = 0;
};

/// This machine's.
Cores& real_cores();

}  // namespace braid::sys
