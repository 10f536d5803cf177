// Low latency: fixed sizes, nothing is known of the others when rows leave. A copy goes to slot 0,
// 1, 2... (slot.h) of its source's region at the target, in the order of tokens, and is cast on the
// way into it.
//
// The target fans copies out to its experts' rows. On the way back a row goes to slot token * K + k
// of the owner; where ranks may be given up, each rank has a region of its own there, and its rows
// lie in it by (expert, token, k). Sums by rank: rank_combine.cc.
#include <algorithm>
#include <cstring>

#include "moe/call_shape.h"
#include "moe/in_call.h"
#include "moe/slot.h"

namespace braid::moe {

namespace {

struct Head {
  uint32_t token = 0;
  int32_t ids[kMaxTopk] = {};
  float weights[kMaxTopk] = {};  // where they travel
};

Head head_of(const std::byte* slot, const LowLatencyDispatch& call) {
  const size_t bytes = 4 * static_cast<size_t>(call.num_topk);
  Head head;
  std::memcpy(&head.token, slot, sizeof head.token);
  std::memcpy(head.ids, slot + Slot::kIds, bytes);
  if (call.has_weights) std::memcpy(head.weights, slot + Slot::weights(call.num_topk), bytes);
  return head;
}

/// Copies of all sources to their rows, expert by expert, in the order of layout.h.
class FanOut {
 public:
  FanOut(const LowLatencyDispatch& call, const LowLatencyRows& out, int num_ranks)
      : call_(call),
        out_(out),
        slot_(slot_of(call)),
        num_ranks_(num_ranks),
        num_local_(call.num_experts / num_ranks),
        counts_(static_cast<size_t>(num_local_ * num_ranks)),
        next_(counts_.size()) {
    if (call.has_weights) std::fill_n(out.copies.counts, num_ranks, 0);
  }

  void count(int source, const std::byte* region, uint32_t copies) {
    for_rows(source, region, copies,
             [&](size_t range, const Head&, int, uint32_t) { ++counts_[range]; });
  }
  void make_ranges() {
    range_each(counts_, num_ranks_, {out_.layout_range, counts_.size()},
               {out_.count, static_cast<size_t>(num_local_)});
  }
  void copy(int source, const std::byte* region, uint32_t copies) {
    if (call_.has_weights) note_copies(source, region, copies);
    for_rows(source, region, copies, [&](size_t range, const Head& head, int k, uint32_t copy) {
      const int expert = static_cast<int>(range) / num_ranks_;
      const uint64_t place =
          masked_place(expert, max_tokens(), num_ranks_, out_.layout_range[range], next_[range]++);
      copy_row(expert, place, head, k, region + copy * slot_.bytes);
      if (call_.has_weights) note(source, copy, k, place);
    });
  }

 private:
  uint64_t max_tokens() const { return static_cast<uint64_t>(call_.max_tokens); }

  template <typename Each>
  void for_rows(int source, const std::byte* region, uint32_t copies, Each&& each) {
    for (uint32_t i = 0; i < copies; ++i) {
      const std::byte* const slot = region + i * slot_.bytes;
      const Head head = head_of(slot, call_);
      for (int k = 0; k < call_.num_topk; ++k) {
        const int32_t expert = head.ids[k];
        if (expert < 0) continue;
        each(static_cast<size_t>(expert * num_ranks_ + source), head, k, i);
      }
    }
  }

  // Which row came of which copy, for sums by rank: first that none did.
  void note_copies(int source, const std::byte* region, uint32_t copies) {
    const auto k = static_cast<size_t>(call_.num_topk);
    out_.copies.counts[source] = static_cast<int32_t>(copies);
    for (uint32_t i = 0; i < copies; ++i) {
      const Head head = head_of(region + i * slot_.bytes, call_);
      const size_t at = copy_at(source, i);
      out_.copies.tokens[at] = static_cast<int32_t>(head.token);
      std::fill_n(out_.copies.places + at * k, k, -1);
      std::copy_n(head.weights, k, out_.copies.weights + at * k);
    }
  }
  void note(int source, uint32_t copy, int k, uint64_t place) {
    const size_t at = copy_at(source, copy) * static_cast<size_t>(call_.num_topk);
    out_.copies.places[at + static_cast<size_t>(k)] = static_cast<int32_t>(place);
  }
  size_t copy_at(int source, uint32_t copy) const {
    return static_cast<size_t>(source) * max_tokens() + copy;
  }

  void copy_row(int expert, uint64_t place, const Head& head, int k, const std::byte* slot) {
    std::memcpy(out_.x + place * call_.row_bytes(), slot + slot_.row, call_.row_bytes());
    out_.src_info[place] = static_cast<int32_t>(head.token);
    out_.slots[place] = static_cast<int32_t>(owner_slot(head.token, call_.num_topk, k));
    if (call_.form != ScaleForm::kNone)
      copy_scales(expert, place - static_cast<uint64_t>(expert) * rows_per_expert(), slot);
  }
  uint64_t rows_per_expert() const { return max_tokens() * static_cast<uint64_t>(num_ranks_); }

  // Column-major: the scale of block b of a row lies at [b][row] of its expert, in words of 4 bytes.
  void copy_scales(int expert, uint64_t row, const std::byte* slot) {
    const uint64_t words = scale_bytes(call_.form, call_.hidden) / 4;
    std::byte* const out =
        out_.scales + static_cast<uint64_t>(expert) * words * rows_per_expert() * 4;
    for (uint64_t w = 0; w < words; ++w)
      std::memcpy(out + (w * rows_per_expert() + row) * 4, slot + slot_.scales + 4 * w, 4);
  }

  const LowLatencyDispatch& call_;
  const LowLatencyRows& out_;
  const Slot slot_;
  const int num_ranks_, num_local_;
  std::vector<int32_t> counts_, next_;  // [L, N]
};

}  // namespace

Status Buffer::check_room(const LowLatencyDispatch& call) const {
  return moe::check_room(call, layout_);
}

Status Buffer::check_room(const LowLatencyCombine& call) const {
  if (!options_.can_shrink || call.sums_by_rank) return moe::check_room(call, layout_);
  const auto m = static_cast<uint64_t>(call.max_tokens);
  const auto rows = static_cast<uint64_t>(std::min(call.num_topk, call.num_experts / size_));
  const uint64_t region = m * rows * call.row_bytes();
  if (region <= layout_.region_bytes()) return {};
  return too_small(region * static_cast<uint64_t>(size_), layout_.half_bytes);
}

// Slots and ranges lie in the caller's memory, and are places in x and in the owners' windows.
Status Buffer::check_places(const LowLatencyCombine& call) const {
  if (call.sums_by_rank) return {};
  const auto m = static_cast<int64_t>(call.max_tokens);
  const auto refused = [](const char* what, int64_t got) {
    return invalid_argument("argument handle: expected {} of the dispatch, got {}", what, got);
  };
  for (int owner = 0; owner < size_; ++owner) {
    int64_t rows = 0;
    for (int e = 0; e < call.num_experts / size_ && !phases_->is_masked(owner); ++e) {
      const int64_t range = call.layout_range[e * size_ + owner];
      const int64_t begin = range_begin(range), count = range_count(range);
      if (begin < 0 || count < 0 || begin + count > m * size_) return refused("a range", range);
      rows += count;
      if (rows > m * call.num_topk) return refused("at most M * K rows of a rank", rows);
      for (int32_t i = 0; i < count; ++i) {
        const int32_t slot = call.slots[masked_place(e, static_cast<uint64_t>(m), size_, range, i)];
        if (slot < 0 || slot >= m * call.num_topk) return refused("a slot", slot);
      }
    }
  }
  return {};
}

Result<Buffer::Ticket> Buffer::send(const LowLatencyDispatch& call) {
  const InCall in_call(*this);
  BRAID_RETURN_IF_ERROR(in_call.status());
  const char* const name = call_name(CallKind::kLowLatencyDispatch);
  BRAID_RETURN_IF_ERROR(in_rank(name, check(call, size_)));
  BRAID_RETURN_IF_ERROR(in_rank(name, check_room(call)));
  if (!phases_->may_begin()) return in_rank(name, begin_phase({}, 0).status());
  const Result<Ticket> ticket = begin_phase(shape_of(call), ++calls_);
  if (!ticket.ok()) return in_rank(name, ticket.status());
  push_rows(ticket.value(), call);
  return ticket;
}

// A token is cast once, in memory of our own: what lies in a window may be far away.
void Buffer::push_rows(const Ticket& ticket, const LowLatencyDispatch& call) {
  const Slot slot = slot_of(call);
  const Experts experts{size_, call.num_experts, call.num_topk};
  const auto k = static_cast<size_t>(call.num_topk);
  const uint64_t x_bytes = call.hidden * dtype_bytes(call.dtype);
  const uint64_t row_bytes = call.row_bytes() + scale_bytes(call.form, call.hidden);
  std::vector<uint32_t> sent(static_cast<size_t>(size_));
  std::vector<std::byte> copy(slot.bytes);
  std::vector<Windows::Place> places;
  for (int t = 0; t < call.num_tokens; ++t) {
    const int64_t* const ids = call.ids + static_cast<size_t>(t) * k;
    const std::byte* const x = call.x + static_cast<uint64_t>(t) * x_bytes;
    if (call.form != ScaleForm::kNone)
      cast_row(call.dtype, x, call.hidden, call.form, copy.data() + slot.row,
               copy.data() + slot.scales);
    const std::byte* const row = call.form != ScaleForm::kNone ? copy.data() + slot.row : x;
    Head head;
    head.token = static_cast<uint32_t>(t);
    places.clear();
    for (int rank = 0; rank < size_; ++rank) {
      if (phases_->is_masked(rank) || !goes_to(experts, ids, rank)) continue;
      for (size_t i = 0; i < k; ++i) head.ids[i] = experts.local(ids[i], rank);
      const uint64_t at = sent[static_cast<size_t>(rank)]++ * slot.bytes;
      const uint64_t head_bytes = Slot::weights(call.num_topk) + (call.has_weights ? 4 * k : 0);
      std::byte* const room = phases_->room_in_region(ticket.phase, rank, at, head_bytes);
      std::memcpy(room, &head.token, sizeof head.token);
      std::memcpy(room + Slot::kIds, head.ids, 4 * k);
      if (call.has_weights)
        std::memcpy(room + Slot::weights(call.num_topk), call.weights + static_cast<size_t>(t) * k,
                    4 * k);
      places.push_back(phases_->place_in_region(ticket.phase, rank, at + slot.row));
    }
    if (!places.empty()) phases_->put(places, {row, row_bytes});
  }
  for (int rank = 0; rank < size_; ++rank) {
    const uint32_t rows = sent[static_cast<size_t>(rank)];
    if (!phases_->is_masked(rank))
      signal(ticket, rank, rows, rows, static_cast<uint32_t>(call.num_tokens));
  }
}

// What the flags say is what no caller's arguments have checked.
Status Buffer::check_flags(const Ticket& ticket, const LowLatencyDispatch& call) const {
  for (int source = 0; source < size_; ++source) {
    if (phases_->is_masked(source)) continue;
    const uint32_t rows = phases_->words_of(ticket.phase, source).rows;
    if (rows > static_cast<uint32_t>(call.max_tokens))
      return internal_error("rank {} pushed {} copies, {} expected at most", source, rows,
                            call.max_tokens);
  }
  return {};
}

Status Buffer::receive(const Ticket& ticket, const LowLatencyDispatch& call,
                       const LowLatencyRows& rows, bool* is_let_in) {
  const InCall in_call(*this);
  BRAID_RETURN_IF_ERROR(in_call.status());
  if (is_let_in != nullptr) *is_let_in = true;
  const char* const name = call_name(CallKind::kLowLatencyDispatch);
  Status status = receive_phase(ticket, rows.wait_ns);
  if (!status.ok()) return in_rank(name, status);
  status = check_flags(ticket, call);
  if (!status.ok()) {
    phases_->release(ticket.phase, true);
    return in_rank(name, status);
  }
  FanOut fan_out(call, rows, size_);
  const auto each = [&](auto&& visit) {
    for (int source = 0; source < size_; ++source)
      if (!phases_->is_masked(source))
        visit(source, phases_->region_of(ticket.phase, source),
              phases_->words_of(ticket.phase, source).rows);
  };
  each([&](int source, const std::byte* region, uint32_t n) { fan_out.count(source, region, n); });
  fan_out.make_ranges();
  each([&](int source, const std::byte* region, uint32_t n) { fan_out.copy(source, region, n); });
  phases_->release(ticket.phase, true);
  return {};
}

Result<Buffer::Ticket> Buffer::send(const LowLatencyCombine& call) {
  const InCall in_call(*this);
  BRAID_RETURN_IF_ERROR(in_call.status());
  const char* const name = call_name(CallKind::kLowLatencyCombine);
  BRAID_RETURN_IF_ERROR(in_rank(name, check(call, size_)));
  BRAID_RETURN_IF_ERROR(in_rank(name, check_room(call)));
  BRAID_RETURN_IF_ERROR(in_rank(name, check_places(call)));
  if (!phases_->may_begin()) return in_rank(name, begin_phase({}, 0).status());
  const Result<Ticket> begun = begin_phase(shape_of(call), ++calls_);
  if (!begun.ok()) return in_rank(name, begun.status());
  const Ticket& ticket = begun.value();
  if (call.sums_by_rank) {
    for (int owner = 0; owner < size_; ++owner) {
      if (phases_->is_masked(owner)) continue;
      const uint32_t rows = push_rank_sums(ticket, call, owner);
      signal(ticket, owner, rows, rows, static_cast<uint32_t>(call.num_tokens));
    }
    return begun;
  }
  const uint64_t bytes = call.row_bytes();
  std::vector<uint32_t> sent(static_cast<size_t>(size_));
  for (int e = 0; e < call.num_experts / size_; ++e)
    for (int owner = 0; owner < size_; ++owner) {
      if (phases_->is_masked(owner)) continue;
      const int64_t range = call.layout_range[e * size_ + owner];
      for (int32_t i = 0; i < range_count(range); ++i) {
        const uint64_t place =
            masked_place(e, static_cast<uint64_t>(call.max_tokens), size_, range, i);
        uint32_t& number = sent[static_cast<size_t>(owner)];
        const auto slot = static_cast<uint64_t>(call.slots[place]);
        std::byte* const room =
            options_.can_shrink
                ? phases_->room_in_region(ticket.phase, owner, number * bytes, bytes)
                : phases_->room_in_half(ticket.phase, owner, slot * bytes, bytes);
        std::memcpy(room, call.x + place * bytes, bytes);
        ++number;
      }
    }
  for (int owner = 0; owner < size_; ++owner) {
    const uint32_t rows = sent[static_cast<size_t>(owner)];
    if (!phases_->is_masked(owner))
      signal(ticket, owner, rows, rows, static_cast<uint32_t>(call.num_tokens));
  }
  return begun;
}

// Where the row of every (token, k) lies, as an offset in rows from the half's begin, or from its
// rank's region; nothing is said of ids that are -1.
std::vector<uint32_t> Buffer::owner_places(const LowLatencyCombine& call) const {
  const auto rows = static_cast<size_t>(call.num_tokens) * static_cast<size_t>(call.num_topk);
  std::vector<uint32_t> places(rows);
  if (!options_.can_shrink) {
    for (size_t i = 0; i < rows; ++i) places[i] = static_cast<uint32_t>(i);
    return places;
  }
  const Experts experts{size_, call.num_experts, call.num_topk};
  std::vector<uint32_t> next(static_cast<size_t>(call.num_experts));
  for (size_t i = 0; i < rows; ++i)
    if (call.ids[i] >= 0) ++next[static_cast<size_t>(call.ids[i])];
  uint32_t begin = 0;
  for (size_t e = 0; e < next.size(); ++e) {
    if (e % static_cast<size_t>(experts.per_rank()) == 0) begin = 0;
    const uint32_t count = next[e];
    next[e] = begin;
    begin += count;
  }
  for (size_t i = 0; i < rows; ++i)
    if (call.ids[i] >= 0) places[i] = next[static_cast<size_t>(call.ids[i])]++;
  return places;
}

Status Buffer::receive(const Ticket& ticket, const LowLatencyCombine& call, std::byte* out,
                       int64_t* wait_ns, bool* is_let_in) {
  const InCall in_call(*this);
  BRAID_RETURN_IF_ERROR(in_call.status());
  if (is_let_in != nullptr) *is_let_in = true;
  const Status status = receive_phase(ticket, wait_ns);
  if (!status.ok()) return in_rank(call_name(CallKind::kLowLatencyCombine), status);
  if (call.sums_by_rank) {
    add_rank_sums(ticket, call, out);
    phases_->release(ticket.phase, true);
    return {};
  }
  const Experts experts{size_, call.num_experts, call.num_topk};
  const std::vector<uint32_t> places = owner_places(call);
  const std::byte* const half = phases_->half_of(ticket.phase);
  std::vector<float> sum(call.hidden);
  for (int t = 0; t < call.num_tokens; ++t) {
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (int k = 0; k < call.num_topk; ++k) {
      const auto i = static_cast<size_t>(t * call.num_topk + k);
      const int rank = experts.rank_of(call.ids[i]);
      if (rank < 0 || phases_->is_masked(rank)) continue;
      const std::byte* const rows =
          options_.can_shrink ? phases_->region_of(ticket.phase, rank) : half;
      add_weighted_row(call.dtype, rows + places[i] * call.row_bytes(), call.weights[i], sum.data(),
                       call.hidden);
    }
    narrow(call.dtype, sum.data(), out + static_cast<uint64_t>(t) * call.row_bytes(), call.hidden);
  }
  phases_->release(ticket.phase, true);
  return {};
}

}  // namespace braid::moe
