// Whose turn it is to move an engine: its worker's, or that of a thread that waits for something of
// it and would sleep else.
//
// A thread that waits is there already. If it moves the engine itself, nothing has to wake the worker
// for its transfer, nor the worker it; on a machine of few processors that is most of what a small
// write takes. docs/engine_protocol.md, "Who moves an engine", tells the rules.
//
// Threads: any. Everything of the worker's belongs to whoever holds the mutex.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>

#include "base/clock.h"
#include "sys/host/api.h"
#include "sys/net/wake.h"

namespace braid::engine {

class Worker;

class Turn {
 public:
  explicit Turn(sys::Wake call) : call_(std::move(call)), process_(sys::process_id()) {}

  /// Moves the engine on this thread until is_over(), or the deadline, or until the engine ends. Comes
  /// back early, or at once, when another thread moves it already or no other may.
  void move_until(const std::function<bool()>& is_over, Deadline deadline);

 private:
  friend class Worker;

  /// Others than the worker may take it: not in a process that was forked off, whose sockets are its
  /// parent's.
  bool is_open() const { return is_open_ && sys::process_id() == process_; }
  /// The worker asks this between two rounds, and gives its turn up.
  bool is_wanted() const { return num_waiting_ != 0; }

  std::mutex mutex_;  // who holds it moves the engine
  // Guarded by mutex_. Null: the worker has ended, or does not let others in.
  Worker* worker_ = nullptr;
  std::atomic<bool> is_open_ = false;    // worker_ is there
  std::atomic<bool> is_lent_ = false;    // a thread that waits has the turn
  std::atomic<int> num_waiting_ = 0;     // threads that want it, or have it
  std::atomic<bool> is_rested_ = false;  // the worker has given it up for one of them
  const sys::Wake call_;                 // wakes the worker, and nobody else
  const int process_;
};

}  // namespace braid::engine
