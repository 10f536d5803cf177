// Reaching a target: one address after the other, until a handshake is done.
//
// A process that has ended refuses at once on every address; one that is cut off says nothing. Nor
// does an address that is routed nowhere from here, of which a host with bridges and networks of its
// own names several: all are tried within a second before any of them gets more time.
//
// Threads: one.
#pragma once

#include <optional>
#include <vector>

#include "engine/handshake.h"
#include "sys/net/api.h"
#include "sys/net/private_fd.h"

namespace braid::engine {

class Dial {
 public:
  enum class Outcome : uint8_t {
    kUnderWay,
    kDone,     // take_socket()
    kRefused,  // nobody listens on any address but others, or it will never take us: why()
  };

  /// Tries the target's addresses in turn, from number `first` on (counted in a circle).
  Dial(const Secret& secret, const Incarnation& self, const Address& target,
       const SessionId& session, size_t first = 0)
      : secret_(secret), self_(self), target_(target), session_(session), first_(first) {}

  /// Never waits. `received` is what the session has by now.
  Outcome step(int64_t now, uint64_t received);
  ControlSocket take_socket();
  const Introduction& introduction() const { return handshake_->introduction(); }
  const Status& why() const { return why_; }

  /// The number of the address that is being tried, or has answered.
  size_t at() const { return at_; }

  /// What to poll for; -1: nothing now.
  int fd() const;
  short events() const;

 private:
  Outcome begin(int64_t now, uint64_t received);
  Outcome failed(int64_t now, Status why);
  Outcome converse(int64_t now);
  Status resolve_all();
  int64_t connect_ns() const;

  const Secret& secret_;
  const Incarnation& self_;
  const Address& target_;
  const SessionId& session_;
  std::vector<sys::Endpoint> endpoints_;
  size_t first_;
  size_t at_ = 0;
  size_t num_refused_ = 0;  // in a row
  int num_rounds_ = 0;      // of all addresses, in vain
  int64_t attempt_ends_ns_ = 0;
  int64_t next_attempt_ns_ = 0;
  bool is_connected_ = false;
  sys::PrivateFd connecting_;
  std::optional<ControlSocket> socket_;
  std::optional<SourceHandshake> handshake_;
  Status why_;
};

}  // namespace braid::engine
