// Normal mode: one copy of a token to each rank that it goes to, exact sizes, any number of tokens.
// Tokens go in rounds, each a phase: round j is tokens j * P to (j + 1) * P - 1 of every rank, where P
// copies fit into a region. All ranks make as many rounds as the longest of them needs.
//
//   round 0     every source also announces its copies per rank [N] and rows per expert of the
//               target [L], at the region's begin; once all announcements are here, everybody knows
//               the size of its result and the number of rounds. Nobody goes on before that, so a
//               call on which the ranks disagree ends after one phase on all of them
//   round j     while j + 1 leaves, j is copied out: next places per source only grow, so rows come
//               to lie by (source, token)
//   combine     the same rounds of the owner's tokens the other way
#include "moe/buffer.h"
#include "moe/call_shape.h"

namespace braid::moe {

Rounds Buffer::rounds_of(const Dispatch& call) const {
  return moe::rounds_of(call, layout_.region_bytes(), size_);
}
Rounds Buffer::rounds_of(const Combine& call) const {
  return moe::rounds_of(call, layout_.region_bytes());
}

// Rounds need both halves.
Status Buffer::check_nothing_is_open() const {
  const uint64_t last = phases_->last();
  const bool is_last_open = last > 0 && !phases_->is_received(last);
  const bool is_earlier_open = last > 1 && !phases_->is_received(last - 1);
  if (!is_last_open && !is_earlier_open) return {};
  return invalid_argument(
      "a low-latency result is alive: its receive half (hook) was not called yet");
}

std::vector<int32_t> Buffer::copies_of(const bool* is_in_rank, int first, int last) const {
  const auto n = static_cast<size_t>(size_);
  std::vector<int32_t> copies(n);
  for (auto t = static_cast<size_t>(first); t < static_cast<size_t>(last); ++t)
    for (size_t r = 0; r < n; ++r) copies[r] += is_in_rank[t * n + r] ? 1 : 0;
  return copies;
}

Status Buffer::run_rounds(Ticket ticket, int num_rounds,
                          const std::function<void(const Ticket&, int)>& push,
                          const std::function<Status(const Ticket&, int)>& take) {
  for (int round = 0; round < num_rounds; ++round) {
    Ticket following;
    if (round + 1 < num_rounds) {
      Result<Ticket> begun = begin_phase(ticket.shape, ticket.call);
      if (!begun.ok()) {
        phases_->release(ticket.phase, round == 0);
        return begun.status();
      }
      following = begun.value();
      following.remark = ticket.remark;
      push(following, round + 1);
    }
    Status status = round > 0 ? receive_phase(ticket, nullptr) : Status();
    const bool has_come = status.ok();
    if (has_come) status = take(ticket, round);
    if (has_come) phases_->release(ticket.phase, true);
    if (!status.ok()) {
      if (following.phase != 0) phases_->release(following.phase, false);
      return status;
    }
    ticket = following;
  }
  return {};
}

}  // namespace braid::moe
