#include "engine/ticket.h"

#include <chrono>
#include <thread>

namespace braid::engine {
namespace {
// A short transfer is over before a thread has gone to sleep and been woken, which takes as long as
// a GPU takes for tens of MiB. Where there are few processors, whoever spins is in the way.
int64_t spin_before_sleep_ns() {
  constexpr unsigned kFewProcessors = 3;
  static const int64_t found = std::thread::hardware_concurrency() <= kFewProcessors ? 20'000
                                                                                     : 1'000'000;
  return found;
}
}  // namespace

Status Ticket::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

Status Ticket::wait(Deadline deadline) const {
  for (const int64_t until = now_ns() + spin_before_sleep_ns(); !is_done() && now_ns() < until;)
    std::this_thread::yield();
  std::unique_lock lock(mutex_);
  while (!is_done()) {
    if (deadline.passed()) return timeout("{}: not done at the deadline of the wait", what_);
    done_.wait_for(lock, std::chrono::nanoseconds(deadline.left_ns()));
  }
  return status_;
}

bool Ticket::then(Callback callback) {
  const std::lock_guard lock(mutex_);
  if (is_done()) return false;
  if (callback_ == nullptr)
    callback_ = std::move(callback);
  else
    callback_ = [first = std::move(callback_), second = std::move(callback)](const Status& ended) {
      first(ended);
      second(ended);
    };
  return true;
}

Callback Ticket::finish(Status status) {
  const std::lock_guard lock(mutex_);
  if (is_done()) return {};
  status_ = std::move(status);
  is_done_.store(true, std::memory_order_release);
  done_.notify_all();
  return std::exchange(callback_, {});
}

}  // namespace braid::engine
