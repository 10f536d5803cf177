// Normal combine: rows back to their owners, in the rounds of normal.cc. The copies of a round's tokens
// lie in the regions of their ranks in the order of tokens, so the owner sums them in rank order,
// straight out of the window. A copy: weights [K] fp32 where the caller has them, and the row.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "moe/call_shape.h"
#include "moe/in_call.h"
#include "moe/row_sum.h"

namespace braid::moe {

// Round `round` of every owner's tokens; `next` [N] is the next row of each owner's block.
void Buffer::push_round(const Ticket& ticket, const Combine& call, const Rounds& rounds, int round,
                        std::vector<int32_t>& next) {
  const auto k = static_cast<size_t>(call.num_topk);
  int32_t end = 0;
  for (int owner = 0; owner < size_; ++owner) {
    const auto o = static_cast<size_t>(owner);
    end += call.rows_of[o];
    uint32_t number = 0;
    for (; next[o] < end && call.source_token[next[o]] < rounds.first(round + 1); ++next[o]) {
      if (phases_->is_masked(owner)) continue;
      const auto at = static_cast<size_t>(next[o]);
      std::byte* const room = phases_->room_in_region(
          ticket.phase, owner, number++ * rounds.copy_bytes, rounds.copy_bytes);
      if (call.has_weights) std::memcpy(room, call.weights + at * k, 4 * k);
      std::memcpy(room + rounds.row, call.x + at * call.row_bytes(), call.row_bytes());
    }
    if (!phases_->is_masked(owner))
      signal(ticket, owner, number, static_cast<uint32_t>(call.rows_of[o]),
             static_cast<uint32_t>(call.num_tokens));
  }
}

void Buffer::sum_round(const Ticket& ticket, const Combine& call, const Rounds& rounds, int round) {
  const auto n = static_cast<size_t>(size_);
  const auto k = static_cast<size_t>(call.num_topk);
  std::vector<const std::byte*> copies(n);
  for (size_t r = 0; r < n; ++r) copies[r] = phases_->region_of(ticket.phase, static_cast<int>(r));
  RowSum sum(call.dtype, call.hidden);
  std::vector<float> weights(k);
  for (int t = std::min(rounds.first(round), call.num_tokens);
       t < rounds.last(round, call.num_tokens); ++t) {
    const auto token = static_cast<size_t>(t);
    sum.begin();
    std::fill(weights.begin(), weights.end(), 0.0F);
    for (size_t r = 0; r < n; ++r) {
      if (!call.is_in_rank[token * n + r] || phases_->is_masked(static_cast<int>(r))) continue;
      sum.add(copies[r] + rounds.row);
      if (call.has_weights) add_weights(copies[r], weights);
      copies[r] += rounds.copy_bytes;
    }
    for (const std::byte* bias : call.biases)
      if (bias != nullptr) sum.add(bias + token * call.row_bytes());
    sum.store(call.out + token * call.row_bytes());
    if (call.out_weights != nullptr)
      std::copy(weights.begin(), weights.end(), call.out_weights + token * k);
  }
}

// Whether every rank sends back what this rank's layout expects of it, in this round.
Status Buffer::check_copies(const Ticket& ticket, const Combine& call, const Rounds& rounds,
                            int round) const {
  const auto expected = copies_of(call.is_in_rank, std::min(rounds.first(round), call.num_tokens),
                                  rounds.last(round, call.num_tokens));
  for (int rank = 0; rank < size_; ++rank) {
    if (phases_->is_masked(rank)) continue;
    const uint32_t copies = phases_->words_of(ticket.phase, rank).rows;
    if (copies != static_cast<uint32_t>(expected[static_cast<size_t>(rank)]))
      return invalid_argument("argument handle: expected {} rows back from rank {}, got {}",
                              expected[static_cast<size_t>(rank)], rank, copies);
  }
  return {};
}

Status Buffer::combine(const Combine& call) {
  const InCall in_call(*this);
  BRAID_RETURN_IF_ERROR(in_call.status());
  const char* const name = call_name(CallKind::kCombine);
  BRAID_RETURN_IF_ERROR(in_rank(name, check(call, size_)));
  const Rounds rounds = rounds_of(call);
  if (rounds.tokens == 0)
    return in_rank(name, no_room_for_copies(rounds.copy_bytes, layout_.region_bytes()));
  BRAID_RETURN_IF_ERROR(in_rank(name, check_nothing_is_open()));
  return in_rank(name, call.sums_by_node ? combine_by_node(call) : combine_by_rank(call, rounds));
}

Status Buffer::combine_by_rank(const Combine& call, const Rounds& rounds) {
  std::vector<int32_t> next(static_cast<size_t>(size_));
  std::exclusive_scan(call.rows_of.begin(), call.rows_of.end(), next.begin(), int32_t{0});
  const auto push = [&](const Ticket& ticket, int round) {
    push_round(ticket, call, rounds, round, next);
  };
  BRAID_ASSIGN_OR_RETURN(const Ticket first, begin_phase(shape_of(call), ++calls_));
  push(first, 0);
  BRAID_RETURN_IF_ERROR(receive_phase(first, nullptr));
  return run_rounds(first, rounds.count(call.most_tokens), push,
                    [&](const Ticket& ticket, int round) -> Status {
                      BRAID_RETURN_IF_ERROR(check_copies(ticket, call, rounds, round));
                      sum_round(ticket, call, rounds, round);
                      return {};
                    });
}

}  // namespace braid::moe
