// What ends messages that do not get on.
#include <algorithm>

#include "base/clock.h"
#include "base/units.h"
#include "coll/messages/exchange.h"

namespace braid::coll {

using Way = Message::Way;

void Exchange::stop(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

// A message that has not moved for the deadline is the end of the comm: the peer is gone, or waits
// for something else. Acknowledged pieces are movement only once both have called.
void Exchange::look_at(int peer, Open& open, int64_t now) {
  const int64_t timeout_ns = state_.config.duration_ns("BRAID_TIMEOUT");
  if (now - open.moved_ns < timeout_ns) return;
  const char* const other = open.message.way == Way::kSend ? "recv" : "send";
  stop(timeout("{}: nothing moved for {}; {}", to_words(open.message), format_ns(timeout_ns),
               open.is_agreed ? fmt::format("{} cells are missing", open.cells_missing)
                              : fmt::format("rank {} has not called {}", peer, other)));
}

// Whether all that is under way with the peer has both its ends.
bool Exchange::owes_nothing(int peer) const {
  const Peer& p = peers_[static_cast<size_t>(peer)];
  return (p.sends.empty() || p.sends.front().is_agreed) &&
         (p.receives.empty() || p.receives.front().is_agreed);
}

void Exchange::probe(int link, int peer) {
  if (owes_nothing(peer)) return outbox_->push_piece(link, peer, comm::kProbeTag, {});
  for (const Way way : {Way::kSend, Way::kRecv})
    if (const auto& in_order = queue(peer, way); !in_order.empty() && !in_order.front().is_agreed)
      put_announcement(link, peer, in_order.front());
}

void Exchange::look_at_links(int64_t now) {
  for (int peer = 0; peer < state_.size(); ++peer) {
    if (peer == state_.rank() || owes_nothing(peer) == stall_watch_->is_judged(peer)) continue;
    if (stall_watch_->is_judged(peer))
      stall_watch_->left(peer);
    else
      stall_watch_->entered(peer, now);
  }
  const StallWatch::Finding found = stall_watch_->check(now, *outbox_);
  if (found.kind == StallWatch::Finding::kStalled)
    outbox_->evacuate(found.link, fmt::format("no ack from rank {} for {} while other links go on",
                                              found.peer, format_ns(found.silent_ns)));
  if (found.kind == StallWatch::Finding::kProbe) probe(found.link, found.peer);
}

// All messages are over, and what says so to a peer does not leave.
void Exchange::look_at_farewell(int64_t now) {
  const int64_t timeout_ns = state_.config.duration_ns("BRAID_TIMEOUT");
  if (num_open_ > 0 || now - last_end_ns_ < timeout_ns) return;
  stop(timeout("messages: the last pieces were not taken for {}", format_ns(timeout_ns)));
}

const Exchange::Open* Exchange::first_open(int peer) const {
  const Peer& p = peers_[static_cast<size_t>(peer)];
  if (!p.sends.empty()) return &p.sends.front();
  return p.receives.empty() ? nullptr : &p.receives.front();
}

transport::PeerSet Exchange::left_with_open() const {
  transport::PeerSet left;
  for (int peer = 0; peer < state_.size(); ++peer)
    if (first_open(peer) != nullptr && state_.group && state_.group->has_left(peer))
      left = left.with(peer);
  return left;
}

// As Call::look_for_the_gone(): the lanes are looked at once more after the group was asked.
void Exchange::look_for_the_gone() {
  const bool is_broken = state_.group && state_.group->broken();
  const transport::PeerSet left = left_with_open();
  if (!is_broken && left.empty()) return;
  for (comm::LinkState& link : state_.links) (void)link.lane->progress();
  (void)receive();
  if (has_news()) return;  // it is told first; what is open then is judged after that
  if (is_broken) return stop(state_.group->fate());
  for (int peer = 0; peer < state_.size(); ++peer)
    if (const Open* open = first_open(peer); left.contains(peer) && open != nullptr)
      return stop(peer_lost("{}: rank {} has left", to_words(open->message), peer));
}

void Exchange::watch() {
  look_for_the_gone();
  if (!status_.ok() || has_news()) return;
  if (!outbox_->fate().ok()) return stop(outbox_->fate());
  if (state_.interrupt)
    if (const Status interrupted = state_.interrupt(); !interrupted.ok())
      return stop(peer_lost("{}", interrupted.message()));  // which this rank is to the others
  const int64_t now = now_ns();
  look_at_links(now);
  look_at_farewell(now);
  for (int peer = 0; peer < state_.size(); ++peer) {
    if (peer == state_.rank()) continue;
    Peer& p = peers_[static_cast<size_t>(peer)];
    uint64_t acked = 0;
    for (const comm::LinkState& link : state_.links) acked += link.lane->acked(peer);
    for (std::deque<Open>* in_order : {&p.sends, &p.receives}) {
      if (in_order->empty()) continue;
      Open& open = in_order->front();
      if (open.is_agreed && acked != p.acked) open.moved_ns = now;
      look_at(peer, open, now);
    }
    p.acked = acked;
  }
}

}  // namespace braid::coll
