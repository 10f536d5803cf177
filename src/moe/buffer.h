// Buffer: one rank's end of dispatch and combine: a window, the phases over it, and the waiting that
// phases.h leaves to its caller. Low-latency calls have halves of their own (send, receive), so that
// the caller computes between them; normal ones know exact sizes before anything is copied out.
//
// Threads: one at a time; a second one gets invalid_argument and changes nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "comm/comm.h"
#include "moe/arguments.h"
#include "moe/host/windows.h"
#include "moe/phases.h"
#include "moe/route_tuner.h"
#include "moe/slot.h"

namespace braid::moe {

struct BufferOptions {
  uint64_t half_bytes = 1 << 20;  // of each of the two halves of a window, at least
  /// A rank that is late is given up and the call goes on without it. Low-latency combines then
  /// need room for each source apart: half_bytes times the number of ranks.
  bool can_shrink = false;
};

/// Of one half, so that low-latency calls of this shape fit: K up to 16, rows up to `row_bytes`.
uint64_t low_latency_half_bytes(int max_tokens, uint64_t row_bytes, int num_ranks, int num_experts);

class Buffer {
 public:
  /// Collective over the comm, which must outlive it; takes no part in its calls afterwards.
  /// exhausted: no memory; unavailable: several hosts and no rdma link; invalid_argument: ranks
  /// gave different options.
  static Result<std::unique_ptr<Buffer>> create(comm::Comm& comm, const BufferOptions& options);
  ~Buffer();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const WindowLayout& layout() const { return layout_; }

  /// Sends this rank's rows; the ticket is for the receive half, which must follow. Of two results
  /// at a time one may be on its way: a third send before the first one's receive half is refused.
  struct Ticket {
    uint64_t phase = 0;
    uint32_t call = 0;
    CallShape shape;
    uint32_t remark = 0;  // route_tuner.h
  };
  Result<Ticket> send(const LowLatencyDispatch& call);
  /// `is_let_in` (or null): set once the half is used up. One that was refused before that, as for another
  /// thread in a call, may be made again.
  Status receive(const Ticket& ticket, const LowLatencyDispatch& call, const LowLatencyRows& rows,
                 bool* is_let_in = nullptr);
  /// In place of the receive half: its rows are nobody's, as where that was interrupted.
  void drop(const Ticket& ticket);
  Result<Ticket> send(const LowLatencyCombine& call);
  /// out [T, hidden]; `wait_ns` as in LowLatencyRows.
  Status receive(const Ticket& ticket, const LowLatencyCombine& call, std::byte* out,
                 int64_t* wait_ns, bool* is_let_in = nullptr);

  /// A dispatch in two steps: what comes is known after the first one, which has sent the first
  /// rows already. The second one must follow, with room for them, or abandon().
  Result<Incoming> begin(const Dispatch& call);
  Status finish(const Dispatch& call, const DispatchedRows& rows);
  /// Where rounds are left the others get an error at once. Of what has this phase alone; 0: whatever
  /// it has.
  void abandon(uint32_t phase = 0);
  /// Incoming::phase of what was begun and not finished; 0: nothing was.
  uint32_t begun_phase() const { return begun_ ? begun_->incoming.phase : 0; }
  Status combine(const Combine& call);

  /// Ranks that are not sent to nor waited for, as bits; this rank's own is refused. Of one's own
  /// accord and for this rank alone: calls of a rank that this one masks are unavailable, naming this
  /// one, until it is not masked any more; then it calls until its numbers are those of the others. It
  /// may still send: have `can_shrink`, or mask between calls that nobody is in.
  uint64_t mask() const { return phases_->mask(); }
  Status set_masked(int rank, bool is_masked);
  Status clear_mask();

  /// A dispatch with ids may gather rows where all ranks share memory and that has been faster
  /// (route_tuner.h); results are the same bytes. Ranks may differ in it; rank 0 decides.
  void set_may_gather(bool may_gather) { may_gather_ = may_gather; }
  /// Whether this rank's last dispatch was gathered.
  bool has_gathered() const { return has_gathered_; }

  /// How ranks lie on nodes where rows go along rails (host/proxy.h), one node of all elsewhere: a
  /// combine that asks for it sums per node of these.
  const fabric::NodeMap& nodes() const { return windows_->nodes(); }

  /// Bytes that left for `peer`, flags and headers included: what was put into its window, and what a
  /// link carried to it, which along rails is what any rank of its node gets. What peers fetch of
  /// gathered rows is not counted.
  uint64_t sent_bytes(int peer) const { return windows_->sent_bytes(peer); }

 private:
  friend class InCall;
  friend class NodeCombine;
  Buffer(comm::Comm::State& state, const BufferOptions& options);

  Status enter(bool may_be_begun);
  void leave() { in_call_.store(false, std::memory_order_release); }
  Status in_rank(const char* call, const Status& status) const;

  // buffer.cc: what all calls are made of.
  Result<Ticket> begin_phase(const CallShape& shape, uint32_t call);
  Status wait_for_acks(const Ticket& ticket);
  void signal(const Ticket& ticket, int peer, uint32_t rows, uint32_t total_rows,
              uint32_t num_tokens);
  /// Flags of all sources; ok: they agree, and the caller releases the phase. Not ok: it is over.
  Status receive_phase(const Ticket& ticket, int64_t* wait_ns);
  Status agree(const Ticket& ticket);
  template <typename Done>
  Status wait_until(Done&& done, Deadline deadline);
  /// Until `done`; timeout where it is late.
  Status await(const std::function<bool()>& done);
  template <typename Done>
  Status wait_longer(Done&& done, Deadline deadline);
  Status look_around();  // for interrupts, too
  Status look_for_the_lost();
  Status late(const Ticket& ticket, const std::vector<int>& missing, const char* what);
  void note_waits(const Ticket& ticket, int64_t start_ns, std::vector<bool>& seen,
                  int64_t* wait_ns);

  // low_latency.cc
  void push_rows(const Ticket& ticket, const LowLatencyDispatch& call);
  Status check_flags(const Ticket& ticket, const LowLatencyDispatch& call) const;
  Status check_room(const LowLatencyDispatch& call) const;
  Status check_room(const LowLatencyCombine& call) const;
  Status check_places(const LowLatencyCombine& call) const;
  std::vector<uint32_t> owner_places(const LowLatencyCombine& call) const;

  // rank_combine.cc
  uint32_t push_rank_sums(const Ticket& ticket, const LowLatencyCombine& call, int owner);
  void add_rank_sums(const Ticket& ticket, const LowLatencyCombine& call, std::byte* out) const;

  // normal.cc
  Rounds rounds_of(const Dispatch& call) const;
  Rounds rounds_of(const Combine& call) const;
  Status check_nothing_is_open() const;
  /// Copies to each rank [N] of tokens `first` to `last` - 1.
  std::vector<int32_t> copies_of(const bool* is_in_rank, int first, int last) const;
  /// All rounds of a call, the first of which has come and was agreed on. `push` sends a round while
  /// `take` has still to take the one before.
  Status run_rounds(Ticket ticket, int num_rounds,
                    const std::function<void(const Ticket&, int)>& push,
                    const std::function<Status(const Ticket&, int)>& take);

  // normal_dispatch.cc
  void announce(const Ticket& ticket, const Dispatch& call, const Rounds& rounds,
                std::span<const int32_t> totals);
  void push_round(const Ticket& ticket, const Dispatch& call, const Rounds& rounds, int round);
  void push_copies(const Ticket& ticket, const Dispatch& call, const Rounds& rounds, int round,
                   std::vector<uint32_t>& numbers);
  uint32_t publish_round(const Ticket& ticket, const Dispatch& call, const Rounds& rounds,
                         int round);
  RouteTuner* tuner_of(const Dispatch& call);
  std::vector<uint32_t> remarks_of(const Ticket& ticket) const;
  void take_copy(const std::byte* copy, const Dispatch& call, const Rounds& rounds,
                 const Experts* experts, const DispatchedRows& out, size_t at) const;
  bool is_mine(const std::byte* copy, const Rounds& rounds, const Experts& experts) const;
  Status take_round(const Ticket& ticket, const Dispatch& call, const Rounds& rounds,
                    const DispatchedRows& out, std::vector<int32_t>& next);
  Incoming incoming_of(const Ticket& ticket, const Dispatch& call) const;

  // normal_combine.cc
  void push_round(const Ticket& ticket, const Combine& call, const Rounds& rounds, int round,
                  std::vector<int32_t>& next);
  void sum_round(const Ticket& ticket, const Combine& call, const Rounds& rounds, int round);
  Status check_copies(const Ticket& ticket, const Combine& call, const Rounds& rounds,
                      int round) const;
  Status combine_by_rank(const Combine& call, const Rounds& rounds);

  // node_combine.cc
  Status combine_by_node(const Combine& call);

  comm::Comm::State& state_;
  const int rank_, size_;
  const BufferOptions options_;
  const int64_t timeout_ns_;
  WindowLayout layout_;
  std::unique_ptr<HostWindows> windows_;
  std::optional<Phases> phases_;
  std::atomic<bool> in_call_{false};
  uint32_t calls_ = 0;

  /// Time since it was made, but for waits.
  class WorkTime {
   public:
    explicit WorkTime(const Buffer& buffer)
        : buffer_(buffer), begin_ns_(now_ns() - buffer.waited_ns_) {}
    int64_t ns() const { return now_ns() - buffer_.waited_ns_ - begin_ns_; }

   private:
    const Buffer& buffer_;
    const int64_t begin_ns_;
  };
  int64_t waited_ns_ = 0;
  static constexpr size_t kMostTuned = 16;
  struct TunedShape {
    CallShape shape;
    RouteTuner tuner;
  };
  std::deque<TunedShape> tuned_;
  bool may_gather_ = false;
  bool has_gathered_ = false;

  struct Begun {
    Ticket ticket;
    int num_rounds = 0;
    Incoming incoming;
    RouteTuner* tuner = nullptr;  // of tuned_
    int64_t work_ns = 0;
  };
  std::optional<Begun> begun_;  // between begin() and finish()
};

}  // namespace braid::moe
