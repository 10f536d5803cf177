// Messages and notifications that have come and wait to be taken.
//
// Threads: any; one mutex.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/descriptor.h"
#include "engine/frames.h"

namespace braid::engine {

struct Message {
  std::string bytes;
  std::string sender;  // the engine's name
  Incarnation incarnation{};
};

class Mailbox {
 public:
  explicit Mailbox(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  /// False: full; what is here must be taken first.
  bool put(Message message);
  /// In order per sender; none at the deadline, or when close() was called.
  std::optional<Message> take(Deadline deadline);
  void close();
  /// Calls once, on the thread that puts the next message here. False: one is here already.
  bool tell(std::function<void()> arrival);

 private:
  const uint64_t most_bytes_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Message> messages_;
  std::vector<std::function<void()>> arrivals_;  // who is told of the next one
  uint64_t bytes_ = 0;
  bool is_closed_ = false;
};

}  // namespace braid::engine
