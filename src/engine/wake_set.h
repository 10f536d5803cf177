// What wakes the thread that moves an engine: its sockets, and a signal. And what else wakes its
// worker.
//
// Two sets of epoll, the first one a member of the second:
//
//   moving   sockets, listeners, and the signal of who hands over a call     whoever has the turn sleeps on it
//   worker   `moving`, and the signal that the turn is the worker's again    the worker sleeps on it
//
// While a thread that waits moves the engine, `moving` is muted in `worker`: what arrives does not wake
// the worker for nothing.
//
// Threads: watch(), mute() and unmute() whoever has the turn; the sleeps one thread each.
#pragma once

#include <poll.h>

#include <span>

#include "base/status.h"
#include "sys/fd.h"

namespace braid::engine {

class WakeSet {
 public:
  /// `wake` and `call` are of sys::Wake, and stay open.
  static Result<WakeSet> create(int wake, int call);

  /// These sockets, and no others.
  void watch(std::span<const pollfd> sockets);
  void mute();
  void unmute();
  /// By the worker, without the turn.
  void sleep_as_worker(int limit_ms) const { sleep(worker_, limit_ms); }
  /// By the thread that has the turn.
  void sleep_in_turn(int limit_ms) const { sleep(moving_, limit_ms); }

 private:
  static void sleep(const sys::Fd& set, int limit_ms);
  Status make_moving();
  void put_all(std::span<const pollfd> sockets);
  bool has_ghost() const;

  int wake_ = -1;
  sys::Fd moving_, worker_;
  uint32_t round_ = 0;  // of watch(); each socket that is watched carries the last one's
  bool is_muted_ = false;
};

}  // namespace braid::engine
