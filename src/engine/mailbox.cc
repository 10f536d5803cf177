#include "engine/mailbox.h"

#include <chrono>

namespace braid::engine {

namespace {
constexpr uint64_t kOverheadBytes = 64;  // so that empty messages are bounded, too
uint64_t cost_bytes(const Message& m) { return m.bytes.size() + m.sender.size() + kOverheadBytes; }
}  // namespace

bool Mailbox::put(Message message) {
  std::vector<std::function<void()>> arrivals;
  {
    const std::lock_guard lock(mutex_);
    if (bytes_ + cost_bytes(message) > most_bytes_) return false;
    bytes_ += cost_bytes(message);
    messages_.push_back(std::move(message));
    arrivals.swap(arrivals_);
  }
  arrived_.notify_one();
  for (const auto& arrival : arrivals) arrival();
  return true;
}

std::optional<Message> Mailbox::take(Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (messages_.empty()) {
    if (is_closed_ || deadline.passed()) return {};
    arrived_.wait_for(lock, std::chrono::nanoseconds(deadline.left_ns()));
  }
  Message message = std::move(messages_.front());
  messages_.pop_front();
  bytes_ -= cost_bytes(message);
  return message;
}

bool Mailbox::tell(std::function<void()> arrival) {
  const std::lock_guard lock(mutex_);
  if (!messages_.empty()) return false;
  arrivals_.push_back(std::move(arrival));
  return true;
}

void Mailbox::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  arrived_.notify_all();
}

}  // namespace braid::engine
