#include "bindings/nccl/shim.h"

#include "base/log.h"
#include "base/status.h"
#include "bindings/nccl/choice.h"
#include "bindings/nccl/inside.h"

namespace braid::nccl {

bool Shim::passes() const { return is_inside() || is_disowned_.load(std::memory_order_relaxed); }

// A group that the forking thread was in is real's alone from here on. What we kept of it stays
// where it is: giving it back would be a call of the core.
void Shim::disown() {
  is_disowned_ = true;
  parents_group_ = std::make_shared<Group>(std::exchange(this_group(), Group{}));
}

NcclResult Shim::forward(const Call& c) {
  const ReentryGuard guard;
  switch (c.op) {
    case Op::kAllReduce:
      return real_.all_reduce(c.send, c.recv, c.count, c.dtype, c.redop, c.comm, c.stream);
    case Op::kAllGather:
      return real_.all_gather(c.send, c.recv, c.count, c.dtype, c.comm, c.stream);
    case Op::kReduceScatter:
      return real_.reduce_scatter(c.send, c.recv, c.count, c.dtype, c.redop, c.comm, c.stream);
    case Op::kBroadcast:
      return real_.broadcast(c.send, c.recv, c.count, c.dtype, c.root, c.comm, c.stream);
    case Op::kAllToAll: return forward_all_to_all(c);
    case Op::kSend: return real_.send(c.send, c.count, c.dtype, c.root, c.comm, c.stream);
    case Op::kRecv: return real_.recv(c.recv, c.count, c.dtype, c.root, c.comm, c.stream);
  }
  return NcclResult::kInternalError;
}

// Libraries that have no such name have had sends and receives of it.
NcclResult Shim::forward_all_to_all(const Call& c) {
  if (!real_.lacks_all_to_all)
    return real_.all_to_all(c.send, c.recv, c.count, c.dtype, c.comm, c.stream);
  int num_ranks = 0;
  NcclResult result = real_.count(c.comm, &num_ranks);
  if (!is_good(result)) return result;
  result = real_.group_start();
  for (int peer = 0; peer < num_ranks && is_good(result); ++peer) {
    const uint64_t at = static_cast<uint64_t>(peer) * block_bytes(c);
    result =
        real_.send(static_cast<const char*>(c.send) + at, c.count, c.dtype, peer, c.comm, c.stream);
    if (is_good(result))
      result =
          real_.recv(static_cast<char*>(c.recv) + at, c.count, c.dtype, peer, c.comm, c.stream);
  }
  const NcclResult ended = real_.group_end();
  return is_good(result) ? ended : result;
}

NcclResult Shim::hand_on(const Call& call) {
  counts_.handed_on[static_cast<size_t>(call.op)].fetch_add(1, std::memory_order_relaxed);
  const NcclResult result = forward(call);
  if (Group& group = this_group(); group.depth > 0 && !is_good(result)) group.error = result;
  return result;
}

NcclResult Shim::refuse(const Call& call) {
  log::debug("nccl", "{}: its communicator was broken off meanwhile", op_name(call.op));
  return NcclResult::kRemoteError;
}

// Of a communicator that is still being made in the background nothing can be said yet.
bool Shim::learn(Entry& entry, NcclComm comm) {
  if (entry.num_ranks() != 0) return true;
  NcclResult now = NcclResult::kInProgress;
  int num_ranks = 0, rank = -1, device = -1;
  const ReentryGuard guard;
  if (real_.get_async_error(comm, &now) != NcclResult::kSuccess || now != NcclResult::kSuccess ||
      real_.count(comm, &num_ranks) != NcclResult::kSuccess)
    return false;
  // A rank that does not know who it is goes on, and says no to the others, who wait for its vote.
  const bool is_known = real_.user_rank(comm, &rank) == NcclResult::kSuccess &&
                        real_.device(comm, &device) == NcclResult::kSuccess;
  entry.learn(num_ranks, is_known ? rank : -1, is_known ? device : -1);
  return true;
}

bool Shim::may_take(Entry& entry, const Call& call) {
  if (entry.state() == Entry::State::kHandedOn) return false;
  // Revoked, or shrunk from, before anything was decided: NCCL has it, and words for such a call.
  if (entry.state() == Entry::State::kUndecided && entry.is_given_up()) return false;
  if (!learn(entry, call.comm)) return false;
  if (entry.is_over_nodes() && !goes_over_nodes(settings_, call, entry.num_ranks())) return false;
  if (is_exchange(call)) return settings_.is_grouped_exchange && this_group().depth > 0;
  if (!is_wanted(settings_, call, entry.num_ranks())) return false;
  const bool is_taken = entry.state() == Entry::State::kTaken;
  // Whether the call lies in a window that is mapped decides who has it.
  const bool is_settled =
      is_taken && !may_be_in_new_window(entry, call) && races_before(entry, call).empty();
  if (is_settled || is_captured(entry, call)) return is_taken && is_ours(entry, call);
  return true;
}

NcclResult Shim::submit(const Call& call) {
  if (passes()) return forward(call);
  const std::shared_ptr<Entry> entry = comms_.find(call.comm);
  Group& group = this_group();
  if (entry == nullptr || !may_take(*entry, call)) {
    const bool may_be_kept = entry != nullptr && entry->state() != Entry::State::kHandedOn;
    if (group.depth > 0 && may_be_kept) group.beside.push_back({entry, call});
    leave(entry.get(), call);
    return hand_on(call);
  }
  if (group.depth > 0) {
    group.kept.push_back({entry, call});
    return NcclResult::kSuccess;
  }
  settle(*entry, call.op);
  if (const Races races = races_before(*entry, call); !races.empty() && !is_captured(*entry, call))
    race_all(*entry, call.comm, races);
  if (is_ours(*entry, call)) return run(*entry, call);
  if (entry->is_given_up()) return refuse(call);
  leave(entry.get(), call);
  return hand_on(call);
}

void Shim::settle(Entry& entry, Op op) {
  if (entry.state() == Entry::State::kUndecided) open(entry, op);
  // It is taken over, and has new ones.
  if (entry.state() == Entry::State::kTaken && entry.must_settle()) map_windows(entry);
}

void Shim::open(Entry& entry, Op op) {
  ErrorText why;
  const braid_nccl_place place{entry.rank(), entry.num_ranks(), entry.device(),
                               static_cast<int>(op), rails()};
  const ReentryGuard guard;
  const int opened = entry.core().open(entry.seat(), &place, why);
  const bool is_taken = (opened & BRAID_NCCL_TAKEN) != 0;
  if ((opened & (BRAID_NCCL_OVER_NODES | BRAID_NCCL_LATER | BRAID_NCCL_LOST)) != 0)
    entry.note_over_nodes();
  if (opened == BRAID_NCCL_LATER) return;
  if (opened == BRAID_NCCL_LOST) return lose(entry, why.text());
  entry.note_sharp((opened & BRAID_NCCL_HAS_SHARP) != 0);
  entry.decide(is_taken ? Entry::State::kTaken : Entry::State::kHandedOn);
  if (is_taken) reasons_.note_taken(entry.is_over_nodes());
  if (is_taken)
    log::info("nccl", "communicator of {} ranks{}: taken over (rank {}, gpu {})", entry.num_ranks(),
              entry.is_over_nodes() ? " on several nodes" : "", entry.rank(), entry.device());
  else
    say_left(entry, why.text());
}

// The others may have taken it over, or left it to NCCL: the calls in question are errors here.
void Shim::lose(Entry& entry, const char* why) {
  log::error("nccl", "communicator of {} ranks: {}", entry.num_ranks(), why);
  entry.fail(why);
  for (const Op op : {Op::kAllGather, Op::kReduceScatter})
    entry.chosen(op) = {{kAllRaced, kAllRaced}, {true, true}};
  entry.decide(Entry::State::kTaken);
}

// One warning, where a process has eight ranks of it and all say the same.
void Shim::say_left(const Entry& entry, const std::string& why) {
  reasons_.note_left(why);
  std::string text =
      fmt::format("communicator of {} ranks is left to NCCL: {}", entry.num_ranks(), why);
  {
    const std::lock_guard lock(said_mutex_);
    if (said_key_ == entry.key() && said_ == text) return;
    said_key_ = entry.key();
    said_ = text;
  }
  log::warn("nccl", "{}", text);
}

NcclResult Shim::run(Entry& entry, const Call& call) {
  const braid_nccl_call asked{static_cast<int>(call.op),
                              call.dtype,
                              call.redop,
                              call.root,
                              call.count,
                              call.send,
                              call.recv,
                              call.stream};
  ErrorText why;
  const int code = entry.core().run(entry.seat(), &asked, why);
  counts_.taken[static_cast<size_t>(call.op)].fetch_add(1, std::memory_order_relaxed);
  entry.note_run();
  if (code == 0) return NcclResult::kSuccess;
  if (entry.error() == nullptr) log::error("nccl", "{}: {}", op_name(call.op), why.text());
  entry.fail(why.text());
  return result_of(code);
}

}  // namespace braid::nccl
