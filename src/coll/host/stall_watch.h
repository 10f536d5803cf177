// StallWatch: tells a link that stopped from a peer that stopped.
//
// A link towards a peer is silent when pieces are outstanding on it, or wait to be taken by it, and
// none was acknowledged for the stall time. Silence alone proves nothing: the peer may be slow,
// stopped, or waiting for the entry of a third rank, until which it takes no data. So no link is
// judged before every rank has entered (of messages: the peer), and it is a stall of the LINK only when the same peer
// acknowledged something on another link well inside the silence (in its second half). Where no
// other link has anything outstanding to that peer there can be no such evidence: then a probe is
// wanted, any small piece put on another link; our entry is one, and helps when the first copy was
// lost. A link that alone leads to somebody is not judged at all: to give it up would end the call. If that stays unanswered too it is the peer, and only the call's deadline speaks. Of a last
// link there is no evidence either: the call then asks whether links it left are good again.
//
// Threads: the comm's lock. Lives for one call.
#pragma once

#include <cstdint>
#include <vector>

#include "coll/host/outbox.h"
#include "comm/state.h"

namespace braid::coll {

class StallWatch {
 public:
  StallWatch(const comm::Comm::State& state, int64_t stall_ns, int64_t now_ns);

  struct Finding {
    enum Kind { kNothing, kStalled, kProbe } kind = kNothing;
    int link = -1;  // kStalled: the link that stalls; kProbe: a link to probe on
    int peer = -1;
    int64_t silent_ns = 0;
  };
  /// Looks at all links; at most one finding a call, call again. kProbe is wanted once per stall
  /// time and peer.
  Finding check(int64_t now_ns, const Outbox& outbox);
  /// Every rank has entered the call: silence counts from now, and links may be judged.
  void all_entered(int64_t now_ns);
  /// The same of one peer, and that it may be elsewhere again.
  void entered(int peer, int64_t now_ns);
  void left(int peer) { judged_ = judged_.without(peer); }
  bool is_judged(int peer) const { return judged_.contains(peer); }
  /// When a piece of ours was last acknowledged, on any link by any peer.
  int64_t last_ack_ns() const { return last_ack_ns_; }

 private:
  struct Mark {
    uint64_t acked = 0;
    int64_t last_ack_ns = 0;      // when acked last grew
    int64_t silent_since_ns = 0;  // when it last grew or nothing was outstanding
  };
  Mark& mark(size_t link, int peer) {
    return marks_[link * static_cast<size_t>(state_.size()) + static_cast<size_t>(peer)];
  }
  void update(int64_t now_ns, const Outbox& outbox);
  int64_t limit_ns(size_t link) const;
  Finding judge(size_t link, int peer, int64_t now_ns);

  const comm::Comm::State& state_;
  int64_t stall_ns_;
  std::vector<Mark> marks_;
  std::vector<int64_t> probed_ns_;  // by peer
  int64_t last_ack_ns_;
  transport::PeerSet judged_;
};

}  // namespace braid::coll
