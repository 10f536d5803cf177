#include "coll/host/stall_watch.h"

#include <algorithm>

namespace braid::coll {

StallWatch::StallWatch(const comm::Comm::State& state, int64_t stall_ns, int64_t now_ns)
    : state_(state),
      stall_ns_(stall_ns),
      marks_(state.links.size() * static_cast<size_t>(state.size())),
      probed_ns_(static_cast<size_t>(state.size()), now_ns),
      last_ack_ns_(now_ns) {
  for (size_t link = 0; link < state_.links.size(); ++link)
    for (int peer = 0; peer < state_.size(); ++peer)
      mark(link, peer) = {peer == state_.rank() ? 0 : state_.links[link].lane->acked(peer), 0,
                          now_ns};
}

void StallWatch::update(int64_t now_ns, const Outbox& outbox) {
  for (size_t link = 0; link < state_.links.size(); ++link) {
    const transport::Lane& lane = *state_.links[link].lane;
    for (int peer = 0; peer < state_.size(); ++peer) {
      if (peer == state_.rank()) continue;
      Mark& m = mark(link, peer);
      const uint64_t acked = lane.acked(peer);
      if (acked != m.acked) m.last_ack_ns = last_ack_ns_ = now_ns;
      const bool is_idle =
          acked == lane.posted(peer) && !outbox.waits(static_cast<int>(link), peer);
      if (acked != m.acked || is_idle) m.silent_since_ns = now_ns;
      m.acked = acked;
    }
  }
}

// A slow link is not a stalled one: at least the time that it takes to drain a full lane twice.
int64_t StallWatch::limit_ns(size_t link) const {
  const comm::LinkState& l = state_.links[link];
  if (l.facts.rate_gbps <= 0) return stall_ns_;
  const transport::LaneCaps& caps = l.lane->caps();
  const double full_lane_bytes = double{1} * caps.max_piece_bytes * caps.depth_pieces;
  return std::max(stall_ns_, static_cast<int64_t>(2 * full_lane_bytes / l.facts.rate_gbps));
}

void StallWatch::all_entered(int64_t now_ns) {
  for (int peer = 0; peer < state_.size(); ++peer)
    if (peer != state_.rank()) entered(peer, now_ns);
}

void StallWatch::entered(int peer, int64_t now_ns) {
  judged_ = judged_.with(peer);
  for (size_t link = 0; link < state_.links.size(); ++link)
    mark(link, peer).silent_since_ns = now_ns;
}

StallWatch::Finding StallWatch::judge(size_t link, int peer, int64_t now_ns) {
  const Mark& m = mark(link, peer);
  const int64_t limit = limit_ns(link);
  const int64_t silent_ns = now_ns - m.silent_since_ns;
  if (silent_ns < limit / 2) return {};
  int idle_link = -1;
  for (size_t other = 0; other < state_.links.size(); ++other) {
    if (other == link || state_.links[other].is_down || !state_.links[other].reach.contains(peer))
      continue;
    const bool is_evidence = mark(other, peer).last_ack_ns > m.silent_since_ns + limit / 2;
    if (judged_.contains(peer) && silent_ns >= limit && is_evidence)
      return {Finding::kStalled, static_cast<int>(link), peer, silent_ns};
    const transport::Lane& lane = *state_.links[other].lane;
    if (lane.acked(peer) == lane.posted(peer)) idle_link = static_cast<int>(other);
  }
  int64_t& probed_ns = probed_ns_[static_cast<size_t>(peer)];
  if (idle_link < 0 || now_ns - probed_ns < limit / 4) return {};
  probed_ns = now_ns;
  return {Finding::kProbe, idle_link, peer, silent_ns};
}

StallWatch::Finding StallWatch::check(int64_t now_ns, const Outbox& outbox) {
  update(now_ns, outbox);
  for (size_t link = 0; link < state_.links.size(); ++link) {
    if (state_.links[link].is_down || state_.is_last_to_somebody(static_cast<int>(link))) continue;
    for (int peer = 0; peer < state_.size(); ++peer) {
      if (peer == state_.rank()) continue;
      const Finding found = judge(link, peer, now_ns);
      if (found.kind != Finding::kNothing) return found;
    }
  }
  return {};
}

}  // namespace braid::coll
