// Waiter: what a rank does while nothing moves. With a core of its own it spins for a few
// microseconds; with more ranks than cores it gives the core away at once; in both cases it then
// sleeps on its doorbell until a peer rings, a paced link has tokens again, or a lane without a
// bell wants to be polled.
//
// Threads: the comm's lock.
#pragma once

#include <cstdint>

#include "comm/state.h"

namespace braid::coll {

class Waiter {
 public:
  explicit Waiter(comm::Comm::State& state);
  /// Something moved: the next wait starts from spinning again.
  void reset() { idle_rounds_ = 0; }
  /// Waits a little, at most about a millisecond. Progress on all lanes between arm and sleep is
  /// done here; true when that progress moved something, so that the caller should look again
  /// without waiting.
  bool wait();

 private:
  bool progress_all();
  int64_t next_event_ns() const;

  comm::Comm::State& state_;
  int idle_rounds_ = 0;
  const int spin_rounds_;
  const int yield_rounds_;
};

}  // namespace braid::coll
