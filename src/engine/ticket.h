// A ticket: something under way that ends once, well or not: a transfer, or counts that are
// expected. Who holds it may look, wait, or be called.
//
// Threads: any number may look and wait; finish() is called by the engine alone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "base/status.h"
#include "engine/turn.h"

namespace braid::engine {

/// Called once, on the engine's callback thread, where it may call the engine but holds up other
/// callbacks while it runs.
using Callback = std::function<void(const Status&)>;

class Ticket {
 public:
  /// A thread that waits for it takes `turn`; null: it only waits.
  explicit Ticket(std::string what, uint64_t id = 0, Callback callback = {},
                  std::shared_ptr<Turn> turn = {})
      : what_(std::move(what)), id_(id), turn_(std::move(turn)), callback_(std::move(callback)) {}

  bool is_done() const { return is_done_.load(std::memory_order_acquire); }
  /// How it ended; ok before that.
  Status status() const;
  /// How it ended, or timeout at the deadline, which ends nothing but the wait.
  Status wait(Deadline deadline) const;
  uint64_t id() const { return id_; }
  const std::string& what() const { return what_; }

  /// Another callback, behind those it has. False when it has ended already: nobody will call.
  bool then(Callback callback);

  /// The callback, once, for whoever runs it; empty when it has none or was taken.
  Callback finish(Status status);

 private:
  const std::string what_;
  const uint64_t id_;
  const std::shared_ptr<Turn> turn_;
  mutable std::mutex mutex_;
  mutable std::condition_variable done_;
  std::atomic<bool> is_done_ = false;
  Status status_;
  Callback callback_;
};
using TicketPtr = std::shared_ptr<Ticket>;

}  // namespace braid::engine
