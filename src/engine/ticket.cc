#include "engine/ticket.h"

#include <chrono>
#include <thread>

#include "engine/spin.h"

namespace braid::engine {
Status Ticket::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

Status Ticket::wait(Deadline deadline) const {
  if (turn_ != nullptr) turn_->move_until([this] { return is_done(); }, deadline);
  for (const int64_t until = now_ns() + long_spin_ns(); !is_done() && now_ns() < until;)
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
