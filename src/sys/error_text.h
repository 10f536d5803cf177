// An errno as every message writes it.
#pragma once

#include <fmt/core.h>

#include <string>
#include <system_error>

namespace braid::sys {

/// "No space left on device (28)". Any thread, unlike strerror in some C libraries.
inline std::string error_text(int error) {
  return fmt::format("{} ({})", std::generic_category().message(error), error);
}

}  // namespace braid::sys
