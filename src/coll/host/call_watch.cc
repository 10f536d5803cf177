// Warnings about a call that makes no progress, and its end at the deadline, or before it begins.
#include <algorithm>
#include <cstddef>

#include "base/clock.h"
#include "base/units.h"
#include "coll/host/call.h"

namespace braid::coll {

std::string Call::missing() const {
  std::string text;
  for (int r = 0; r < state_.size(); ++r) {
    if (r == state_.rank()) continue;
    const auto index = static_cast<size_t>(r);
    uint64_t cells = 0;
    if (index < data_seen_.size())
      cells += static_cast<uint64_t>(
          std::count(data_seen_[index].begin(), data_seen_[index].end(), false));
    if (index < operand_seen_.size())
      cells += static_cast<uint64_t>(
          std::count(operand_seen_[index].begin(), operand_seen_[index].end(), false));
    if (sums_) cells += sums_->missing_from(r);
    uint64_t unacked = 0;
    for (const comm::LinkState& link : state_.links)
      unacked += link.lane->posted(r) - link.lane->acked(r);
    if (!entries_[index])
      text += fmt::format("; rank {} has not entered", r);
    else if (cells > 0 || unacked > 0)
      text +=
          fmt::format("; rank {}: {} cells expected, {} pieces unacknowledged", r, cells, unacked);
    for (const comm::LinkState& link : state_.links)
      if (const Status health = link.lane->health(r); !health.ok())
        text += fmt::format(" ({})", health.message());
  }
  return text;
}

// Of those that lead to everyone; a node's own have these behind them.
bool Call::has_one_link_left() const {
  const auto count = static_cast<std::ptrdiff_t>(state_.link_facts.size());
  const auto is_left = [](const comm::LinkState& link) { return !link.is_down; };
  return count > 1 &&
         std::count_if(state_.links.begin(), state_.links.begin() + count, is_left) == 1;
}

transport::PeerSet Call::left_without_entry() const {
  transport::PeerSet left;
  for (int r = 0; r < state_.size(); ++r)
    if (!entries_[static_cast<size_t>(r)] && state_.group && state_.group->has_left(r))
      left = left.with(r);
  return left;
}

// Who has ended its part may leave, or die, at once: what it put last lies in our lanes, perhaps since
// our last look at them. So they are looked at once more, after the group was asked: nothing more can
// come from those who were gone by then, and only they are judged.
void Call::look_for_the_gone() {
  const bool is_broken = state_.group && state_.group->broken();
  const transport::PeerSet left = left_without_entry();
  if (!is_broken && left.empty()) return;
  progress_lanes();
  (void)receive();
  if (is_broken && needs_peers()) return stop(state_.group->fate());
  for (int r = 0; r < state_.size(); ++r)
    if (left.contains(r) && !entries_[static_cast<size_t>(r)])
      return stop(peer_lost("{} (call {}): rank {} has left and will not enter",
                            to_words(moves_.signature), epoch_, r));
}

// Looks for trouble: a broken group, a stalled link, a passed deadline.
void Call::watch() {
  look_for_the_gone();
  if (!status_.ok()) return;
  if (!outbox_.fate().ok()) return stop(outbox_.fate());
  if (state_.interrupt)
    if (const Status interrupted = state_.interrupt(); !interrupted.ok())
      return stop(peer_lost("{}", interrupted.message()));  // which this rank is to the others
  // A stall of the last link would show on no other: links that were left may be good again.
  if (has_one_link_left()) state_.probe_down_links();
  const int64_t now = now_ns();
  const StallWatch::Finding found = stall_watch_.check(now, outbox_);
  if (found.kind == StallWatch::Finding::kStalled)
    outbox_.evacuate(found.link, fmt::format("no ack from rank {} for {} while other links go on",
                                             found.peer, format_ns(found.silent_ns)));
  if (found.kind == StallWatch::Finding::kProbe)
    outbox_.push_piece(found.link, found.peer, encode_tag({epoch_, PieceKind::kEntry}),
                       entry_bytes_);
  const int64_t timeout_ns = state_.config.duration_ns("BRAID_TIMEOUT");
  // Only what brings the call forward restarts the deadline: an entry, a cell, and, once all have
  // entered, an ack. Probes and second copies are answered by any peer that is alive, for as long
  // as a third one keeps everybody waiting.
  const int64_t moved_ns =
      agreed_ ? std::max(last_progress_ns_, stall_watch_.last_ack_ns()) : last_progress_ns_;
  if (now - moved_ns < timeout_ns) return;
  stop(timeout("{} (call {}): nothing moved for {}{}", to_words(moves_.signature), epoch_,
               format_ns(timeout_ns), missing()));
}

Status end_without_memory(comm::Comm& comm, const Signature& signature, uint64_t bytes) {
  comm::CallGuard guard(comm);
  BRAID_RETURN_IF_ERROR(guard.status());
  comm::Comm::State& state = guard.state();
  return end_comm(state,
                  exhausted("{} (call {}): rank {} has no memory left for {} bytes of its own",
                            to_words(signature), state.epoch + 1, state.rank(), bytes));
}

}  // namespace braid::coll
