// A normal combine that sums per node first, where the caller asked for it: one row per (token, node)
// crosses between nodes in place of one per (token, rank). Its numbers are of their own (reference.h):
// each node's rows are summed in rank order in fp32 and rounded to the rows' type, the partial; then
// partials are summed in the order of nodes, and biases, and rounded again.
//
// Two things are done in a round of P tokens of every owner:
//
//   inside     every rank gives each of its node mates the rows whose owners are on that one's rail.
//              In its region there: counts by node [num_nodes] int32, then for each node room for P
//              copies: token, weights [K], row
//   across     every rank sums what it got, and sends the partials of other nodes' tokens to their
//              owners, which are on its rail: weights [K], row. The partials of its own tokens stay
//
// A phase is the across of a round and the inside of the next one, so that the link carries a round's
// partials while the next ones are summed: for those a rank waits for its node mates' flags alone. It
// looks at all flags of a phase, and at what has crossed, when it has sent the next phase. On one node
// nothing crosses. Flags go to everybody, as in every phase.
//
// A rank that finds something wrong says so in its next flags, and is there for as many phases as the
// others begin before they hear of it: all end with the same number.
#include <algorithm>
#include <cstring>

#include "moe/call_shape.h"
#include "moe/in_call.h"
#include "moe/node_copies.h"
#include "moe/row_sum.h"

namespace braid::moe {

/// One call: its rounds, and what is kept between a round's two phases.
class NodeCombine {
 public:
  NodeCombine(Buffer& buffer, const Combine& call)
      : b_(buffer),
        call_(call),
        nodes_(buffer.nodes()),
        node_(nodes_.node_of(buffer.rank_)),
        layout_(call, nodes_.num_nodes, buffer.layout_.region_bytes()),
        sum_(call.dtype, call.hidden),
        weights_(layout_.weight_bytes / 4) {
    int32_t row = 0;
    for (const int32_t rows : call.rows_of) {
      next_.push_back(row);
      ends_.push_back(row += rows);
    }
  }

  Status run() {
    if (layout_.rounds.tokens == 0)
      return no_room_for_copies(
          layout_.begin + layout_.copy_bytes * static_cast<uint64_t>(nodes_.num_nodes),
          b_.layout_.region_bytes());
    const uint32_t number = ++b_.calls_;
    num_rounds_ = layout_.rounds.count(call_.most_tokens);
    const int num_phases = num_rounds_ + (is_one_node() ? 0 : 1);
    BRAID_ASSIGN_OR_RETURN(Buffer::Ticket now, b_.begin_phase(shape_of(call_), number));
    BRAID_RETURN_IF_ERROR(push(nullptr, now, 0));
    BRAID_RETURN_IF_ERROR(b_.receive_phase(now, nullptr));  // nobody goes on before all agree
    Status status;
    for (int phase = 0; phase < num_phases; ++phase) {
      Buffer::Ticket next;
      if (phase + 1 < num_phases) {
        Result<Buffer::Ticket> begun = b_.begin_phase(shape_of(call_), number);
        if (!begun.ok()) {
          b_.phases_->release(now.phase, phase == 0);
          return begun.status();
        }
        next = begun.value();
      }
      const Status of_all = run_phase(now, next, phase, status);
      if (!of_all.ok()) {
        // On one node nothing of `next` was sent yet, and its acks hang on its flags.
        if (is_one_node() && next.phase != 0) b_.phases_->signal_failure(next.phase, next.call);
        if (next.phase != 0) b_.phases_->release(next.phase, false);
        return status.ok() ? of_all : status;
      }
      b_.phases_->release(now.phase, true);
      now = next;
    }
    return status;
  }

 private:
  bool is_one_node() const { return nodes_.num_nodes == 1; }

  /// Sends `next` and takes what `now` has brought. `status`: of this rank alone. Not ok: of all
  /// ranks, and `now` is released.
  Status run_phase(const Buffer::Ticket& now, const Buffer::Ticket& next, int phase,
                   Status& status) {
    if (is_one_node() && phase > 0) BRAID_RETURN_IF_ERROR(b_.receive_phase(now, nullptr));
    bool has_rows = phase < num_rounds_ && status.ok();
    if (has_rows && !is_one_node() && phase > 0) has_rows = have_mates_come(now, status);
    if (has_rows) status = check_inside(now, phase);
    if (has_rows && status.ok())
      status = push(&now, next, phase + 1);
    else if (next.phase != 0)
      b_.phases_->signal_failure(next.phase, next.call);
    if (has_rows && status.ok()) status = sum_partials(now, node_, nullptr, phase);
    if (!is_one_node() && phase > 0) {
      BRAID_RETURN_IF_ERROR(b_.receive_phase(now, nullptr));
      if (status.ok()) status = check_across(now, phase - 1);
      if (status.ok()) store(&now, phase - 1);
    } else if (is_one_node() && status.ok()) {
      store(nullptr, phase);
    }
    return {};
  }

  /// What `ticket` carries: the partials of the round before `round`, whose rows are in `inside`, and
  /// the rows of `round`, where there is one. Whatever it finds, everybody gets one flag of it: a
  /// second one, of a failure, could come to a rank that has taken the first.
  Status push(const Buffer::Ticket* inside, const Buffer::Ticket& ticket, int round) {
    if (ticket.phase == 0) return {};
    Status status;
    for (int peer = 0; peer < b_.size_; ++peer) {
      if (nodes_.share_node(peer, b_.rank_)) continue;
      const bool has_partials = inside != nullptr && nodes_.share_rail(peer, b_.rank_);
      const Status own =
          has_partials ? sum_partials(*inside, nodes_.node_of(peer), &ticket, round - 1) : Status();
      if (status.ok()) status = own;
      if ((!has_partials || !own.ok()) && !b_.phases_->is_masked(peer))
        b_.signal(ticket, peer, 0, 0, static_cast<uint32_t>(call_.num_tokens));
    }
    for_mates([&](int mate) { push_inside(ticket, mate, round); });
    return status;
  }

  /// Rows of the round's tokens to the node mate on their owners' rail.
  void push_inside(const Buffer::Ticket& ticket, int mate, int round) {
    const int end = round < num_rounds_ ? layout_.rounds.first(round + 1) : 0;
    std::vector<uint32_t> counts(static_cast<size_t>(nodes_.num_nodes));
    uint32_t sent = 0;
    for (int node = 0; node < nodes_.num_nodes; ++node) {
      uint32_t& count = counts[static_cast<size_t>(node)];
      const auto owner = static_cast<size_t>(nodes_.rank_at(node, nodes_.local_of(mate)));
      for (int32_t& row = next_[owner]; row < ends_[owner] && call_.source_token[row] < end; ++row)
        push_row(ticket, mate, layout_.copy(node, count++), static_cast<size_t>(row));
      sent += count;
    }
    std::memcpy(b_.phases_->room_in_region(ticket.phase, mate, 0, 4 * counts.size()), counts.data(),
                4 * counts.size());
    b_.signal(ticket, mate, sent, sent, static_cast<uint32_t>(call_.num_tokens));
  }

  /// Waits for the node mates' flags. False where one of them is not of this call, which all ranks
  /// find in it; with a status where one does not come.
  bool have_mates_come(const Buffer::Ticket& ticket, Status& status) {
    std::vector<int> missing;
    const auto have_come = [&] {
      missing.clear();
      for_mates([&](int mate) {
        if (!b_.phases_->has_arrived(ticket.phase, mate)) missing.push_back(mate);
      });
      return missing.empty();
    };
    status = b_.await(have_come);
    if (status.code() == Code::kTimeout)
      status = b_.late(ticket, missing, "what was to be sent by");
    bool are_of_call = status.ok();
    for_mates([&](int mate) {
      if (!are_of_call) return;
      const FlagWords words = b_.phases_->words_of(ticket.phase, mate);
      are_of_call = words.shape == ticket.shape && words.call == ticket.call;
    });
    return are_of_call;
  }

  void push_row(const Buffer::Ticket& ticket, int peer, uint64_t offset, size_t row) {
    std::byte* const room =
        b_.phases_->room_in_region(ticket.phase, peer, offset, layout_.row + call_.row_bytes());
    const auto token = static_cast<uint32_t>(call_.source_token[row]);
    std::memcpy(room, &token, sizeof token);
    if (layout_.weight_bytes != 0)
      std::memcpy(room + PartialLayout::kWeights, call_.weights + row * weights_.size(),
                  layout_.weight_bytes);
    std::memcpy(room + layout_.row, call_.x + row * call_.row_bytes(), call_.row_bytes());
  }

  uint32_t count_from(const Buffer::Ticket& ticket, int source, int node) const {
    uint32_t count = 0;
    std::memcpy(&count, b_.phases_->region_of(ticket.phase, source) + 4 * node, sizeof count);
    return count;
  }
  template <typename Each>
  void for_mates(Each&& each) const {
    for (int rank = 0; rank < b_.size_; ++rank)
      if (nodes_.share_node(rank, b_.rank_) && !b_.phases_->is_masked(rank)) each(rank);
  }

  int first(int round) const { return std::min(layout_.rounds.first(round), call_.num_tokens); }
  int last(int round) const { return layout_.rounds.last(round, call_.num_tokens); }

  // Counts of own tokens are known; those of other owners are bounded.
  Status check_inside(const Buffer::Ticket& ticket, int round) const {
    Status status;
    for_mates([&](int mate) {
      for (int node = 0; node < nodes_.num_nodes; ++node) {
        const uint32_t count = count_from(ticket, mate, node);
        const auto most = static_cast<uint32_t>(layout_.rounds.tokens);
        const uint32_t expected = node == node_ ? own_copies(mate, round) : std::min(count, most);
        if (status.ok() && count != expected)
          status = invalid_argument("argument handle: expected {} rows back from rank {}, got {}",
                                    expected, mate, count);
      }
    });
    return status;
  }

  bool goes_to(int token, int rank) const {
    return call_.is_in_rank[static_cast<size_t>(token) * static_cast<size_t>(b_.size_) +
                            static_cast<size_t>(rank)] &&
           !b_.phases_->is_masked(rank);
  }
  uint32_t own_copies(int rank, int round) const {
    uint32_t count = 0;
    for (int t = first(round); t < last(round); ++t) count += goes_to(t, rank) ? 1 : 0;
    return count;
  }
  bool goes_to_node(int token, int node) const {
    for (int local = 0; local < nodes_.per_node; ++local)
      if (goes_to(token, nodes_.rank_at(node, local))) return true;
    return false;
  }

  std::vector<std::byte>& partials_of(int round) { return partials_[round % 2]; }

  /// Partials of the tokens of this rail's owner on `node`, in the order of tokens: of another node
  /// into its window, of this one into partials_of().
  Status sum_partials(const Buffer::Ticket& inside, int node, const Buffer::Ticket* across,
                      int round) {
    std::vector<std::byte>& own = partials_of(round);
    TokenReader copies(layout_, node);
    for_mates([&](int mate) {
      copies.add_source(b_.phases_->region_of(inside.phase, mate), count_from(inside, mate, node));
    });
    const int owner = nodes_.rank_at(node, nodes_.local_of(b_.rank_));
    const uint64_t bytes = layout_.row + call_.row_bytes();
    const bool is_masked = b_.phases_->is_masked(owner);
    if (across == nullptr) own.clear();
    int64_t before = -1;
    for (uint32_t number = 0;; ++number) {
      sum_.begin();
      std::fill(weights_.begin(), weights_.end(), 0.0F);
      const int64_t token = copies.next([&](const std::byte* copy) {
        sum_.add(copy + layout_.row);
        add_weights(copy + PartialLayout::kWeights, weights_);
      });
      if (token < 0) {
        if (across != nullptr && !is_masked)
          b_.signal(*across, owner, number, number, static_cast<uint32_t>(call_.num_tokens));
        return {};
      }
      if (token <= before || number == static_cast<uint32_t>(layout_.rounds.tokens))
        return internal_error("rows of token {} of rank {} came behind those of {}", token, owner,
                              before);
      before = token;
      if (is_masked) continue;
      if (across == nullptr) own.resize((number + 1) * bytes);
      std::byte* const to = across == nullptr
                                ? own.data() + number * bytes
                                : b_.phases_->room_in_region(across->phase, owner,
                                                             number * layout_.copy_bytes, bytes);
      std::memcpy(to + PartialLayout::kWeights, weights_.data(), layout_.weight_bytes);
      sum_.store(to + layout_.row);
    }
  }

  Status check_across(const Buffer::Ticket& ticket, int round) const {
    for (int rank = 0; rank < b_.size_; ++rank) {
      if (b_.phases_->is_masked(rank) || nodes_.share_node(rank, b_.rank_)) continue;
      const bool sends = nodes_.share_rail(rank, b_.rank_);
      uint32_t expected = 0;
      for (int t = first(round); t < last(round) && sends; ++t)
        expected += goes_to_node(t, nodes_.node_of(rank)) ? 1 : 0;
      const uint32_t partials = b_.phases_->words_of(ticket.phase, rank).rows;
      if (partials != expected)
        return invalid_argument("argument handle: expected {} partials back from rank {}, got {}",
                                expected, rank, partials);
    }
    return {};
  }

  /// Own tokens of the round: partials in the order of nodes, then biases.
  void store(const Buffer::Ticket* across, int round) {
    std::vector<const std::byte*> next;
    for (int node = 0; node < nodes_.num_nodes; ++node) {
      const int rank = nodes_.rank_at(node, nodes_.local_of(b_.rank_));
      next.push_back(node == node_ || across == nullptr
                         ? partials_of(round).data()
                         : b_.phases_->region_of(across->phase, rank));
    }
    for (int t = first(round); t < last(round); ++t) {
      const auto token = static_cast<size_t>(t);
      sum_.begin();
      std::fill(weights_.begin(), weights_.end(), 0.0F);
      for (int node = 0; node < nodes_.num_nodes; ++node) {
        if (!goes_to_node(t, node)) continue;
        const std::byte*& partial = next[static_cast<size_t>(node)];
        sum_.add(partial + layout_.row);
        add_weights(partial + PartialLayout::kWeights, weights_);
        partial += node == node_ ? layout_.row + call_.row_bytes() : layout_.copy_bytes;
      }
      for (const std::byte* bias : call_.biases)
        if (bias != nullptr) sum_.add(bias + token * call_.row_bytes());
      sum_.store(call_.out + token * call_.row_bytes());
      if (call_.out_weights != nullptr)
        std::copy(weights_.begin(), weights_.end(), call_.out_weights + token * weights_.size());
    }
  }

  Buffer& b_;
  const Combine& call_;
  const fabric::NodeMap nodes_;
  const int node_;
  const PartialLayout layout_;
  RowSum sum_;
  std::vector<float> weights_;
  std::vector<int32_t> next_, ends_;    // by owner: rows that are not sent yet
  std::vector<std::byte> partials_[2];  // of own tokens by this node, of even and odd rounds
  int num_rounds_ = 0;
};

Status Buffer::combine_by_node(const Combine& call) { return NodeCombine(*this, call).run(); }

}  // namespace braid::moe
