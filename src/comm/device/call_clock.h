// CallClock: when the GPU came to each call and when it was done with it, by a pair of events on
// the caller's stream, put on the host's clock.
//
// Nobody waits for an event: settle() looks which have come. An event tells times by its distance
// to another one, in floats of milliseconds, so one that is known on both clocks stays near: the
// first is waited for on an idle stream, once, and later ones are ends of calls.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "base/status.h"
#include "sys/cuda/owned.h"

namespace braid::comm {

class CallClock {
 public:
  /// Calls under way beyond it have no times.
  static constexpr size_t kMostPending = 1024;
  /// A call's number, when the stream came to it, when it was done (0: not yet); now_ns().
  using Told = std::function<void(uint64_t number, int64_t begin_ns, int64_t end_ns)>;

  /// In the current context, which the events must not outlive. Waits for `idle`.
  static Result<CallClock> create(sys::Cuda& cuda, sys::Stream idle);
  CallClock(CallClock&&) = default;
  CallClock& operator=(CallClock&&) = default;

  /// Of a call that is not captured: its events would belong to the graph.
  Status begin(uint64_t number, sys::Stream stream);
  Status end(sys::Stream stream);
  /// Tells of calls that were begun or done since the last time, oldest first; of the former once.
  Status settle(const Told& told);
  bool is_pending() const { return !pending_.empty(); }

 private:
  struct Run {
    uint64_t number = 0;
    sys::OwnedEvent begin, end;
    int64_t begin_ns = 0;  // 0: not known
  };
  CallClock(sys::Cuda& cuda, sys::OwnedEvent known, int64_t known_ns)
      : cuda_(&cuda), known_(std::move(known)), known_ns_(known_ns) {}
  Result<Run> take_run();
  Result<int64_t> time_of(const sys::OwnedEvent& event) const;
  /// False: the GPU has not come that far.
  Result<bool> settle_oldest(const Told& told);

  sys::Cuda* cuda_;
  sys::OwnedEvent known_;  // an event that has come, and when
  int64_t known_ns_;
  std::deque<Run> pending_;  // in the order of the calls, which is the order of their ends
  std::vector<Run> spare_;
  bool is_running_ = false;  // the last of pending_ has no end yet
};

}  // namespace braid::comm
