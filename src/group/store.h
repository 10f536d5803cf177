// The store: rank 0's end of the control plane. One thread, one poll loop, no decision that could
// wait for a rank.
//
//   greeting ---hello proved---> member ---left---> leaving
//      |                            |                  |
//      | refused, late, garbage     | end of stream    | end of stream
//      v                            v                  v
//    closed                      dead: news          closed
//
// Forming: a member whose connection ends gives its place back ("gone"), so that a restarted rank
// may take it. When all places are taken everybody gets "ready", and from then on an end of stream
// without "left" is a death. The store then only relays: a blob goes to all other members at once,
// and the ranks themselves see who is missing. So the store keeps no state per exchange, and cannot
// hang in one.
//
// A stranger gets a connection, greeting_ns and kMaxGreetingBytes; at most kMaxGreetings of them at
// a time, the oldest makes room. So neither silence nor garbage delays a rank by more than its own
// place in a poll loop.
//
// Threads: serve(), close() and the destructor by the owner; everything else belongs to the store's
// thread.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "sys/fd.h"

namespace braid::group {

/// What a rank must agree on to become a member.
struct Terms {
  std::string token;
  std::string job_id;
  int size = 0;
  // For a hello; a rank takes microseconds, a loaded machine less than this.
  int64_t greeting_ns = 5'000'000'000;
};

class Store {
 public:
  /// Takes a listening socket and starts the thread.
  static Result<std::unique_ptr<Store>> serve(sys::Fd listener, Terms terms);
  virtual ~Store() = default;
  /// Sends what is queued, closes every connection and ends the thread, by the deadline at the
  /// latest.
  virtual void close(Deadline deadline) = 0;
};

}  // namespace braid::group
