// Normal dispatch: begin() sends the first round and waits for what is announced in it, finish() sends the
// rest and copies all of it out. normal.cc tells of the rounds.
//
// A copy: local ids [K] int32 and weights [K] fp32 where the caller has them, the token's number, the
// row, the side row; what lies before the row, and the whole, padded to kRowAlignment. A gathered one
// (route_tuner.h) lies in its source's own window, once for all ranks, with the ids of all experts.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "moe/call_shape.h"
#include "moe/in_call.h"

namespace braid::moe {

Result<Incoming> Buffer::begin(const Dispatch& call) {
  const InCall in_call(*this);
  BRAID_RETURN_IF_ERROR(in_call.status());
  const char* const name = call_name(CallKind::kDispatch);
  BRAID_RETURN_IF_ERROR(in_rank(name, check(call, size_)));
  const Rounds rounds = rounds_of(call);
  if (rounds.tokens == 0)
    return in_rank(name,
                   no_room_for_copies(rounds.begin + rounds.copy_bytes, layout_.region_bytes()));
  BRAID_RETURN_IF_ERROR(in_rank(name, check_nothing_is_open()));
  const WorkTime work(*this);
  RouteTuner* const tuner = tuner_of(call);
  Result<Ticket> ticket = begin_phase(shape_of(call), ++calls_);
  if (!ticket.ok()) return in_rank(name, ticket.status());
  if (tuner != nullptr) ticket.value().remark = tuner->remark();
  push_round(ticket.value(), call, rounds, 0);
  const Status status = receive_phase(ticket.value(), nullptr);
  if (!status.ok()) return in_rank(name, status);
  const Incoming incoming = incoming_of(ticket.value(), call);
  if (tuner != nullptr) tuner->hear(remarks_of(ticket.value()), incoming.most_tokens);
  has_gathered_ = Remark::of(ticket.value().remark).is_gathered;
  begun_ = Begun{ticket.value(), rounds.count(incoming.most_tokens), incoming, tuner, work.ns()};
  return incoming;
}

// Gathering needs everybody's window, and ids in every copy.
RouteTuner* Buffer::tuner_of(const Dispatch& call) {
  if (!may_gather_ || options_.can_shrink || !call.has_ids) return nullptr;
  for (int peer = 0; peer < size_; ++peer)
    if (windows_->window(peer) == nullptr) return nullptr;
  const CallShape shape = shape_of(call);
  for (TunedShape& each : tuned_)
    if (each.shape == shape) return &each.tuner;
  if (tuned_.size() == kMostTuned) return nullptr;
  return &tuned_.emplace_back(TunedShape{shape, {}}).tuner;
}

std::vector<uint32_t> Buffer::remarks_of(const Ticket& ticket) const {
  std::vector<uint32_t> remarks;
  for (int source = 0; source < size_; ++source)
    if (!phases_->is_masked(source)) remarks.push_back(phases_->remark_of(ticket.phase, source));
  return remarks;
}

// What is known at the first round: copies per rank, and rows per expert of the one who is told.
void Buffer::announce(const Ticket& ticket, const Dispatch& call, const Rounds& rounds,
                      std::span<const int32_t> totals) {
  const auto local = static_cast<size_t>(call.num_experts / size_);
  for (int rank = 0; rank < size_; ++rank) {
    if (phases_->is_masked(rank)) continue;
    std::byte* const said = phases_->room_in_region(ticket.phase, rank, 0, rounds.begin);
    std::memset(said, 0, rounds.begin);
    std::memcpy(said, totals.data(), totals.size_bytes());
    if (call.per_expert != nullptr)
      std::memcpy(said + totals.size_bytes(), call.per_expert + static_cast<size_t>(rank) * local,
                  4 * local);
  }
}

// Token by token: what differs between ranks, and then the row for all of them at once.
void Buffer::push_round(const Ticket& ticket, const Dispatch& call, const Rounds& rounds,
                        int round) {
  const auto totals = copies_of(call.is_in_rank, 0, call.num_tokens);
  if (round == 0) announce(ticket, call, rounds, totals);
  std::vector<uint32_t> numbers(static_cast<size_t>(size_));
  if (Remark::of(ticket.remark).is_gathered)
    std::ranges::fill(numbers, publish_round(ticket, call, rounds, round));
  else
    push_copies(ticket, call, rounds, round, numbers);
  for (int rank = 0; rank < size_; ++rank)
    if (!phases_->is_masked(rank))
      signal(ticket, rank, numbers[static_cast<size_t>(rank)],
             static_cast<uint32_t>(totals[static_cast<size_t>(rank)]),
             static_cast<uint32_t>(call.num_tokens));
}

// Gathered: one copy of every token that goes anywhere, in this rank's own window, with the ids of all
// experts and all weights. Whoever it goes to finds it there.
uint32_t Buffer::publish_round(const Ticket& ticket, const Dispatch& call, const Rounds& rounds,
                               int round) {
  const auto k = static_cast<size_t>(call.num_topk);
  uint32_t number = 0;
  for (int t = std::min(rounds.first(round), call.num_tokens);
       t < rounds.last(round, call.num_tokens); ++t) {
    const auto token = static_cast<size_t>(t);
    const int64_t* const ids = call.ids + token * k;
    if (std::all_of(ids, ids + k, [](int64_t id) { return id < 0; })) continue;
    std::byte* const copy = phases_->room_in_region(
        ticket.phase, rank_, rounds.begin + number++ * rounds.copy_bytes, rounds.copy_bytes);
    const auto token_number = static_cast<uint32_t>(t);
    std::memcpy(copy, &token_number, sizeof token_number);
    for (size_t i = 0; i < k; ++i) {
      const auto id = static_cast<int32_t>(ids[i]);
      std::memcpy(copy + rounds.ids + 4 * i, &id, sizeof id);
    }
    if (call.has_weights) std::memcpy(copy + rounds.weights, call.weights + token * k, 4 * k);
    std::memcpy(copy + rounds.row, call.x + token * call.row_bytes, call.row_bytes);
    if (call.side_bytes != 0)
      std::memcpy(copy + rounds.side, call.side + token * call.side_bytes, call.side_bytes);
  }
  return number;
}

void Buffer::push_copies(const Ticket& ticket, const Dispatch& call, const Rounds& rounds,
                         int round, std::vector<uint32_t>& numbers) {
  const Experts experts{size_, std::max(call.num_experts, size_), call.num_topk};
  const auto n = static_cast<size_t>(size_), k = static_cast<size_t>(call.num_topk);
  const uint64_t head_bytes = rounds.weights + (call.has_weights ? 4 * k : 0);
  std::vector<Windows::Place> rows, sides;
  for (int t = std::min(rounds.first(round), call.num_tokens);
       t < rounds.last(round, call.num_tokens); ++t) {
    const auto token = static_cast<size_t>(t);
    rows.clear();
    sides.clear();
    for (int rank = 0; rank < size_; ++rank) {
      if (!call.is_in_rank[token * n + static_cast<size_t>(rank)] || phases_->is_masked(rank))
        continue;
      const uint64_t at = rounds.begin + numbers[static_cast<size_t>(rank)]++ * rounds.copy_bytes;
      std::byte* const head = phases_->room_in_region(ticket.phase, rank, at, head_bytes);
      const auto token_number = static_cast<uint32_t>(t);
      std::memcpy(head, &token_number, sizeof token_number);
      for (size_t i = 0; i < k; ++i) {
        const int32_t local = call.has_ids ? experts.local(call.ids[token * k + i], rank) : 0;
        const float weight = !call.has_weights || local < 0 ? 0.0F : call.weights[token * k + i];
        if (call.has_ids) std::memcpy(head + rounds.ids + 4 * i, &local, sizeof local);
        if (call.has_weights) std::memcpy(head + rounds.weights + 4 * i, &weight, sizeof weight);
      }
      rows.push_back(phases_->place_in_region(ticket.phase, rank, at + rounds.row));
      if (call.side_bytes != 0)
        sides.push_back(phases_->place_in_region(ticket.phase, rank, at + rounds.side));
    }
    if (!rows.empty()) phases_->put(rows, {call.x + token * call.row_bytes, call.row_bytes});
    if (!sides.empty()) phases_->put(sides, {call.side + token * call.side_bytes, call.side_bytes});
  }
}

Incoming Buffer::incoming_of(const Ticket& ticket, const Dispatch& call) const {
  const auto n = static_cast<size_t>(size_);
  Incoming incoming;
  incoming.rows_of.resize(n);
  incoming.rank_prefix.resize(n * n);
  incoming.phase = static_cast<uint32_t>(ticket.phase);
  const auto local = static_cast<size_t>(call.num_experts / size_);
  if (call.per_expert != nullptr) incoming.per_expert.resize(local);
  for (size_t source = 0; source < n; ++source) {
    std::vector<int32_t> said(n + local);
    if (!phases_->is_masked(static_cast<int>(source))) {
      const FlagWords words = phases_->words_of(ticket.phase, static_cast<int>(source));
      incoming.rows_of[source] = static_cast<int32_t>(words.total_rows);
      incoming.most_tokens = std::max(incoming.most_tokens, static_cast<int32_t>(words.num_tokens));
      std::memcpy(said.data(), phases_->region_of(ticket.phase, static_cast<int>(source)),
                  4 * said.size());
    }
    for (size_t r = 0; r < n; ++r)
      incoming.rank_prefix[source * n + r] =
          said[r] + (source > 0 ? incoming.rank_prefix[(source - 1) * n + r] : 0);
    for (size_t e = 0; e < incoming.per_expert.size(); ++e) incoming.per_expert[e] += said[n + e];
  }
  incoming.num_rows = std::accumulate(incoming.rows_of.begin(), incoming.rows_of.end(), int32_t{0});
  return incoming;
}

// One copy to its place. What it says of experts: local ids and weights of this rank's, or, where
// `experts` is given, all ids and all weights of the token.
void Buffer::take_copy(const std::byte* copy, const Dispatch& call, const Rounds& rounds,
                       const Experts* experts, const DispatchedRows& out, size_t at) const {
  const auto k = static_cast<size_t>(call.num_topk);
  std::memcpy(out.x + at * call.row_bytes, copy + rounds.row, call.row_bytes);
  if (call.side_bytes != 0)
    std::memcpy(out.side + at * call.side_bytes, copy + rounds.side, call.side_bytes);
  if (out.source_token != nullptr) std::memcpy(out.source_token + at, copy, 4);
  for (size_t j = 0; j < k; ++j) {
    int32_t local = 0;
    if (call.has_ids) std::memcpy(&local, copy + rounds.ids + 4 * j, sizeof local);
    if (experts != nullptr) local = experts->local(local, rank_);
    if (out.ids != nullptr) out.ids[at * k + j] = local;
    if (out.weights == nullptr || !call.has_weights) continue;
    float& weight = out.weights[at * k + j];
    std::memcpy(&weight, copy + rounds.weights + 4 * j, sizeof weight);
    if (local < 0) weight = 0;
  }
}

// Whether a copy that all ranks see is for this one.
bool Buffer::is_mine(const std::byte* copy, const Rounds& rounds, const Experts& experts) const {
  for (int k = 0; k < experts.num_topk; ++k) {
    int32_t id = 0;
    std::memcpy(&id, copy + rounds.ids + 4 * k, sizeof id);
    if (experts.rank_of(id) == rank_) return true;
  }
  return false;
}

// Copies of a round to their places; `next` [N] is each source's next one.
Status Buffer::take_round(const Ticket& ticket, const Dispatch& call, const Rounds& rounds,
                          const DispatchedRows& out, std::vector<int32_t>& next) {
  const Experts experts{size_, std::max(call.num_experts, size_), call.num_topk};
  int32_t end = 0;
  for (int source = 0; source < size_; ++source) {
    end += begun_->incoming.rows_of[static_cast<size_t>(source)];
    if (phases_->is_masked(source)) continue;
    int32_t& place = next[static_cast<size_t>(source)];
    const uint32_t copies = phases_->words_of(ticket.phase, source).rows;
    const bool is_gathered = Remark::of(phases_->remark_of(ticket.phase, source)).is_gathered;
    const std::byte* const region = is_gathered ? phases_->region_at(ticket.phase, source)
                                                : phases_->region_of(ticket.phase, source);
    if (copies > static_cast<uint32_t>(rounds.tokens) || region == nullptr ||
        (is_gathered && !call.has_ids))
      return internal_error("rank {} pushed {} copies{}, {} expected at most", source, copies,
                            is_gathered ? " for all" : "", rounds.tokens);
    const std::byte* copy = region + rounds.begin;
    for (uint32_t i = 0; i < copies; ++i, copy += rounds.copy_bytes) {
      if (is_gathered && !is_mine(copy, rounds, experts)) continue;
      if (place == end)
        return internal_error("rank {} pushed more copies than it announced", source);
      take_copy(copy, call, rounds, is_gathered ? &experts : nullptr, out,
                static_cast<size_t>(place++));
    }
  }
  return {};
}

Status Buffer::finish(const Dispatch& call, const DispatchedRows& out) {
  const InCall in_call(*this, InCall::kFinishes);
  BRAID_RETURN_IF_ERROR(in_call.status());
  const char* const name = call_name(CallKind::kDispatch);
  if (!begun_) return in_rank(name, invalid_argument("nothing was begun"));
  const Begun begun = *begun_;
  const WorkTime work(*this);
  const Rounds rounds = rounds_of(call);
  if (out.num_rows < begun.incoming.num_rows)
    return in_rank(name, invalid_argument("expected room for {} rows, got {}",
                                          begun.incoming.num_rows, out.num_rows));
  std::vector<int32_t> next(static_cast<size_t>(size_));
  std::exclusive_scan(begun.incoming.rows_of.begin(), begun.incoming.rows_of.end(), next.begin(),
                      int32_t{0});
  const Status status = run_rounds(
      begun.ticket, begun.num_rounds,
      [&](const Ticket& ticket, int round) { push_round(ticket, call, rounds, round); },
      [&](const Ticket& ticket, int) { return take_round(ticket, call, rounds, out, next); });
  begun_.reset();
  const auto k = static_cast<size_t>(call.num_topk);
  const auto used = static_cast<size_t>(begun.incoming.num_rows) * k;
  const auto room = static_cast<size_t>(out.num_rows) * k;
  if (out.ids != nullptr) std::fill(out.ids + used, out.ids + room, -1);
  if (out.weights != nullptr) std::fill(out.weights + used, out.weights + room, 0.0F);
  if (!status.ok()) return in_rank(name, status);
  if (begun.tuner != nullptr) begun.tuner->end(begun.work_ns + work.ns());
  return {};
}

void Buffer::abandon(uint32_t phase) {
  const InCall in_call(*this, InCall::kFinishes);
  if (!in_call.status().ok() || !begun_) return;
  if (phase != 0 && phase != begun_->incoming.phase) return;
  const Begun begun = *std::exchange(begun_, {});
  phases_->release(begun.ticket.phase, true);
  if (begun.num_rounds == 1) return;
  const uint64_t following = phases_->begin();
  phases_->signal_failure(following, begun.ticket.call);
  phases_->release(following, false);
}

}  // namespace braid::moe
