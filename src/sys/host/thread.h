// A thread, or why there is none: std::thread throws when the system has no more.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
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

/// Work in a thread of its own that who asks waits for only so long: for calls into a library that
/// may hang until something is done that comes after it. Joined when this is destroyed, so destroy
/// it when that is done. Where there is no thread to be had, the work is done at once.
class LimitedWait {
 public:
  template <typename Work>
  LimitedWait(std::string_view what, int64_t patience_ns, const Work& work) {
    auto thread = start_thread(what, [this, work] {
      work();
      is_done_ = true;
    });
    if (!thread.ok()) {
      work();
      return;
    }
    thread_ = std::move(*thread);
    const Deadline patience = Deadline::after_ns(patience_ns);
    while (!is_done_ && !patience.passed())
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  ~LimitedWait() {
    if (thread_.joinable()) thread_.join();
  }
  LimitedWait(const LimitedWait&) = delete;
  LimitedWait& operator=(const LimitedWait&) = delete;

 private:
  std::atomic<bool> is_done_{false};
  std::thread thread_;
};

}  // namespace braid::sys
