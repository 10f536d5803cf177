// A low-latency combine that sums per rank first, where the caller asked for it: one row per (token, rank)
// comes back in place of one per (token, expert). Its numbers are of their own (reference.h): a rank's
// rows of a token are multiplied by their weights and added up in the order of k in fp32, and rounded to
// the rows' type, the partial; the owner adds partials up in rank order, and rounds again.
//
// The weights came with the dispatch; a table of its copies says which rows are of one token
// (arguments.h). A partial goes to slot `token` of its rank's region at the owner.
#include <algorithm>

#include "moe/in_call.h"
#include "moe/row_sum.h"

namespace braid::moe {

// Tokens that went to no expert here have no copy. What the table holds may have been written over by
// the caller: nothing outside of x is read for it, and nothing outside of the region is written.
uint32_t Buffer::push_rank_sums(const Ticket& ticket, const LowLatencyCombine& call, int owner) {
  const auto m = static_cast<size_t>(call.max_tokens), k = static_cast<size_t>(call.num_topk);
  const auto rows = static_cast<int64_t>(call.num_experts) * call.max_tokens;
  const size_t first = static_cast<size_t>(owner) * m;
  const auto copies =
      static_cast<size_t>(std::clamp(call.copies.counts[owner], 0, call.max_tokens));
  std::vector<float> sum(call.hidden);
  uint32_t sent = 0;
  for (size_t copy = first; copy < first + copies; ++copy) {
    const int32_t token = call.copies.tokens[copy];
    if (token < 0 || token >= call.max_tokens) continue;
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (size_t choice = copy * k; choice < (copy + 1) * k; ++choice) {
      const int32_t place = call.copies.places[choice];
      if (place < 0 || place >= rows) continue;
      add_weighted_row(call.dtype, call.x + static_cast<uint64_t>(place) * call.row_bytes(),
                       call.copies.weights[choice], sum.data(), call.hidden);
    }
    std::byte* const room = phases_->room_in_region(
        ticket.phase, owner, static_cast<uint64_t>(token) * call.row_bytes(), call.row_bytes());
    narrow(call.dtype, sum.data(), room, call.hidden);
    ++sent;
  }
  return sent;
}

void Buffer::add_rank_sums(const Ticket& ticket, const LowLatencyCombine& call,
                           std::byte* out) const {
  const Experts experts{size_, call.num_experts, call.num_topk};
  RowSum sum(call.dtype, call.hidden);
  for (int t = 0; t < call.num_tokens; ++t) {
    const uint64_t at = static_cast<uint64_t>(t) * call.row_bytes();
    const int64_t* const ids =
        call.ids + static_cast<size_t>(t) * static_cast<size_t>(call.num_topk);
    sum.begin();
    for (int rank = 0; rank < size_; ++rank)
      if (!phases_->is_masked(rank) && goes_to(experts, ids, rank))
        sum.add(phases_->region_of(ticket.phase, rank) + at);
    sum.store(out + at);
  }
}

}  // namespace braid::moe
