// An end for what ranks do together and what has none of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/status.h"
#include "group/group.h"
#include "sys/host/thread.h"

namespace braid::nccl {

/// While it lives, a group whose ranks do not come to an end by the deadline is broken off: the
/// waits of setting up have the deadline of calls, which is long. Who ends without a word breaks
/// the group anyway.
class GroupWatchdog {
 public:
  /// exhausted: the system has no thread left.
  static Result<std::unique_ptr<GroupWatchdog>> begin(group::Group& group, Deadline deadline) {
    std::unique_ptr<GroupWatchdog> made(new GroupWatchdog);
    BRAID_ASSIGN_OR_RETURN(
        made->watch_, sys::start_thread("deadline of ranks", [raw = made.get(), &group, deadline] {
          raw->watch(group, deadline);
        }));
    return made;
  }
  ~GroupWatchdog() {
    if (!watch_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      must_stop_ = true;
    }
    is_over_.notify_all();
    watch_.join();
  }
  GroupWatchdog(const GroupWatchdog&) = delete;
  GroupWatchdog& operator=(const GroupWatchdog&) = delete;

 private:
  GroupWatchdog() = default;
  void watch(group::Group& group, Deadline deadline) {
    std::unique_lock lock(mutex_);
    const auto left = std::chrono::nanoseconds(deadline.left_ns());
    if (!is_over_.wait_for(lock, left, [this] { return must_stop_; }))
      group.report(unavailable("the ranks did not set the communicator up in time"));
  }

  std::mutex mutex_;
  std::condition_variable is_over_;
  bool must_stop_ = false;
  std::thread watch_;  // last: it uses all of the above
};

}  // namespace braid::nccl
