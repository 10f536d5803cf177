// BRAID_CHECK: our own invariants, on in every build. User input never reaches one: it gets a
// Status.
#pragma once

#include <fmt/core.h>

#include <string>

namespace braid {
/// Prints `file:line: check failed: expr: message` to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* expr,
                               const std::string& message);
}  // namespace braid

/// Aborts unless `cond`; the format arguments show the values that broke it.
#define BRAID_CHECK(cond, ...)                                                    \
  do {                                                                            \
    if (!(cond)) [[unlikely]]                                                     \
      ::braid::check_failed(__FILE__, __LINE__, #cond, fmt::format(__VA_ARGS__)); \
  } while (false)
