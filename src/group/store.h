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
// From the welcome on, frames are sealed under keys of the connection (frame_seal.h).
//
// A stranger gets a connection, greeting_ns and kMaxGreetingBytes; at most kMaxGreetings of them at
// a time. Who makes room is one of whoever has most of them (a user of this host, an address of
// another one), so a flood turns out its own. Processes of other users of this host are turned out
// at once where the secret is this user's own. A flood still costs what the kernel and one accept()
// a connection cost, and it can fill the queue of the listening socket, in which a rank then waits:
// ranks that greet knock again several times a second. Members do not notice it.
//
// Two jobs of one user that were given neither a token nor a name share a secret, and perhaps a
// port. Nothing tells their ranks apart, so the store watches for the one thing that shows it: two
// living processes that claim one place. Who comes second is refused, and told why; and while it
// is not sure who the others are (the group is forming, or was a minute ago) the group is ended for
// all.
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
  bool is_users_own = false;  // the secret: no other user has it
  // It is, and the job has no name: other jobs of the user may have the same.
  bool is_nameless = false;
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
