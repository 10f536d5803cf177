// A thread, or why there is none: std::thread throws when the system has no more.
#pragma once

#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/status.h"

namespace braid::sys {

/// Starts `body()` in a thread. exhausted: the system has no more, or the user may have no more.
template <typename Body>
Result<std::thread> start_thread(std::string_view what, Body body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return exhausted("{}: no thread: {}; ulimit -u and the pids limit of a container bound them",
                     what, error.what());
  }
}

}  // namespace braid::sys
