// The kernel's text files, read only: /proc and /sys. A tree may have another root, so that a saved
// machine can be looked at; the fake holds a tree in memory.
//
// Threads: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace braid::sys {

class Sysfs {
 public:
  virtual ~Sysfs() = default;

  /// The file's text without trailing white space. unavailable when it is not there or cannot be
  /// read (some sysfs files, such as a link's speed while it is down, answer EINVAL).
  virtual Result<std::string> read(std::string_view path) const = 0;
  /// Names in a directory, sorted; empty when there is no such directory.
  virtual std::vector<std::string> list(std::string_view path) const = 0;
  /// The absolute path that a chain of links leads to, with every link on the way resolved;
  /// unavailable when there is none.
  virtual Result<std::string> resolve(std::string_view path) const = 0;

  /// read() as an integer, decimal or 0x; `fallback` when there is none.
  int64_t read_integer(std::string_view path, int64_t fallback) const;
};

/// This machine.
const Sysfs& real_sysfs();

}  // namespace braid::sys
