#include "bindings/nccl/shim.h"

#include <algorithm>
#include <exception>

#include "base/log.h"
#include "base/status.h"

namespace braid::nccl {

namespace {

thread_local int depth_inside = 0;

/// While the real library runs on this thread: what it calls of its own public names goes straight
/// on.
class Inside {
 public:
  Inside() { ++depth_inside; }
  ~Inside() { --depth_inside; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

/// Room for the core's words.
class Why {
 public:
  operator braid_nccl_why() { return {text_, sizeof text_}; }  // NOLINT: implicit by design
  const char* text() const { return text_; }

 private:
  char text_[1024] = "";
};

NcclResult result_of(int code) {
  switch (static_cast<Code>(code)) {
    case Code::kOk: return NcclResult::kSuccess;
    case Code::kInvalidArgument: return NcclResult::kInvalidArgument;
    case Code::kUnsupported: return NcclResult::kInvalidUsage;
    case Code::kUnavailable:
    case Code::kExhausted: return NcclResult::kSystemError;
    case Code::kDriver: return NcclResult::kUnhandledCudaError;
    case Code::kTimeout:
    case Code::kPeerLost: return NcclResult::kRemoteError;
    case Code::kInternal: break;
  }
  return NcclResult::kInternalError;
}

}  // namespace

/// One thread's group.
struct Shim::Group {
  struct Made {  // a communicator whose address is written at the group's end
    NcclComm* where;
    std::shared_ptr<Entry> entry;
  };
  int depth = 0;
  std::vector<Kept> kept;
  std::vector<Made> made;
  bool begins_with_real = false;  // the first call of ours or theirs was handed on
  NcclResult error = NcclResult::kSuccess;
};

Shim::Group& Shim::this_group() {
  thread_local Group group;
  return group;
}

// ---- communicators ----

// A communicator whose size is not known yet (0) signs: it is looked at again when it is.
std::shared_ptr<Entry> Shim::sign(const std::string& key, int num_ranks) {
  const bool is_possible = settings_.is_on && signs_ && !is_disowned_ && num_ranks != 1 &&
                           num_ranks <= BRAID_NCCL_MOST_RANKS;
  const braid_nccl_core* core = is_possible ? open_core_() : nullptr;
  if (core == nullptr) return std::make_shared<Entry>(nullptr, key, nullptr);
  Why why;
  braid_nccl_seat* seat = core->sign(key.data(), key.size(), why);
  if (seat == nullptr) log::info("nccl", "a communicator is left to NCCL: {}", why.text());
  return std::make_shared<Entry>(core, key, seat);
}

void Shim::adopt(NcclComm* comm, std::shared_ptr<Entry> entry, NcclResult made) {
  if (!is_good(made) || *comm == nullptr) return;
  if (made == NcclResult::kSuccess && entry->seat() != nullptr) entry->core().seal(entry->seat());
  comms_.put(*comm, std::move(entry));
}

NcclResult Shim::create(const std::string& key, int num_ranks, NcclComm* comm,
                        const std::function<NcclResult()>& make) {
  if (depth_inside > 0 || comm == nullptr) return make();
  std::shared_ptr<Entry> entry = sign(key, num_ranks);
  NcclResult made;
  {
    const Inside inside;
    made = make();
  }
  Group& group = this_group();
  if (group.depth > 0 && is_good(made))
    group.made.push_back({comm, std::move(entry)});
  else
    adopt(comm, std::move(entry), made);
  return made;
}

NcclResult Shim::split(NcclComm parent, int color, int key, NcclComm* child, void* config) {
  const auto make = [&] { return real_.split(parent, color, key, child, config); };
  const std::shared_ptr<Entry> entry = depth_inside > 0 ? nullptr : comms_.find(parent);
  if (entry == nullptr) return make();
  const std::string name = entry->next_child("split", std::to_string(color));
  return create(name, color == kNoColor ? 1 : 0, child, make);
}

NcclResult Shim::shrink(NcclComm parent, int* excluded, int num_excluded, NcclComm* child,
                        void* config, int flags) {
  const auto make = [&] {
    return real_.shrink(parent, excluded, num_excluded, child, config, flags);
  };
  const std::shared_ptr<Entry> entry = depth_inside > 0 ? nullptr : comms_.find(parent);
  if (entry == nullptr || (excluded == nullptr && num_excluded > 0)) return make();
  // What the parent has under way may wait for a rank that is gone; NCCL ends its part.
  if ((flags & kShrinkAbort) != 0 && entry->seat() != nullptr)
    entry->core().close(entry->seat(), 0);
  std::vector<int> gone(excluded, excluded + std::max(num_excluded, 0));
  std::sort(gone.begin(), gone.end());
  std::string without;
  for (const int rank : gone) without += std::to_string(rank) + ",";
  return create(entry->key() + "/shrink:" + without, 0, child, make);
}

NcclResult Shim::finalize(NcclComm comm) {
  if (const auto entry = comms_.find(comm); entry && entry->seat() && !is_disowned_) {
    entry->decide(Entry::State::kHandedOn);  // calls after this are errors, and NCCL's to tell
    entry->core().close(entry->seat(), 1);
  }
  const Inside inside;
  return real_.finalize(comm);
}

NcclResult Shim::destroy(NcclComm comm) {
  if (const auto entry = is_disowned_ ? nullptr : comms_.take(comm); entry && entry->seat())
    entry->core().close(entry->seat(), 1);
  const Inside inside;
  return real_.destroy(comm);
}

NcclResult Shim::abort(NcclComm comm) {
  if (const auto entry = is_disowned_ ? nullptr : comms_.take(comm); entry && entry->seat())
    entry->core().close(entry->seat(), 0);
  const Inside inside;
  return real_.abort(comm);
}

NcclResult Shim::revoke(NcclComm comm, int flags) {
  if (const auto entry = comms_.find(comm); entry && entry->seat() && !is_disowned_)
    entry->core().close(entry->seat(), 0);
  const Inside inside;
  return real_.revoke(comm, flags);
}

NcclResult Shim::get_async_error(NcclComm comm, NcclResult* error) {
  const NcclResult result = real_.get_async_error(comm, error);
  if (depth_inside > 0 || result != NcclResult::kSuccess || !is_good(*error)) return result;
  const auto entry = comms_.find(comm);
  if (entry == nullptr || entry->state() != Entry::State::kTaken) return result;
  Why why;
  const int code = entry->core().status(entry->seat(), why);
  if (code == 0) return result;
  entry->fail(why.text());
  *error = result_of(code);
  return result;
}

const char* Shim::get_last_error(NcclComm comm) {
  const auto entry = comms_.find(comm);
  const char* const text = entry ? entry->error() : nullptr;
  return text != nullptr ? text : real_.get_last_error(comm);
}

// ---- one call ----

NcclResult Shim::forward(const Call& c) {
  const Inside inside;
  switch (c.op) {
    case Op::kAllReduce:
      return real_.all_reduce(c.send, c.recv, c.count, c.dtype, c.redop, c.comm, c.stream);
    case Op::kAllGather:
      return real_.all_gather(c.send, c.recv, c.count, c.dtype, c.comm, c.stream);
    case Op::kReduceScatter:
      return real_.reduce_scatter(c.send, c.recv, c.count, c.dtype, c.redop, c.comm, c.stream);
    case Op::kBroadcast:
      return real_.broadcast(c.send, c.recv, c.count, c.dtype, c.root, c.comm, c.stream);
    case Op::kAllToAll: return real_.all_to_all(c.send, c.recv, c.count, c.dtype, c.comm, c.stream);
    case Op::kSend: return real_.send(c.send, c.count, c.dtype, c.root, c.comm, c.stream);
    case Op::kRecv: return real_.recv(c.recv, c.count, c.dtype, c.root, c.comm, c.stream);
  }
  return NcclResult::kInternalError;
}

NcclResult Shim::hand_on(const Call& call) {
  Group& group = this_group();
  counts_.handed_on[static_cast<size_t>(call.op)].fetch_add(1, std::memory_order_relaxed);
  if (group.depth > 0 && group.kept.empty()) group.begins_with_real = true;
  const NcclResult result = forward(call);
  if (group.depth > 0 && !is_good(result)) group.error = result;
  return result;
}

// Of a communicator that is still being made in the background nothing can be said yet.
bool Shim::may_take(Entry& entry, const Call& call) {
  if (entry.state() == Entry::State::kHandedOn) return false;
  if (entry.num_ranks() == 0) {
    NcclResult now = NcclResult::kInProgress;
    int num_ranks = 0;
    const Inside inside;
    if (real_.get_async_error(call.comm, &now) != NcclResult::kSuccess ||
        now != NcclResult::kSuccess || real_.count(call.comm, &num_ranks) != NcclResult::kSuccess)
      return false;
    entry.set_num_ranks(num_ranks);
  }
  const bool is_exchange = call.op == Op::kSend || call.op == Op::kRecv;
  if (is_exchange) return settings_.is_grouped_exchange && this_group().depth > 0;
  if (!is_wanted(settings_, call, entry.num_ranks())) return false;
  return entry.state() == Entry::State::kTaken || entry.core().is_capturing(call.stream) == 0;
}

NcclResult Shim::submit(const Call& call) {
  if (depth_inside > 0) return forward(call);
  const std::shared_ptr<Entry> entry = is_disowned_ ? nullptr : comms_.find(call.comm);
  if (entry == nullptr || !may_take(*entry, call)) return hand_on(call);
  if (Group& group = this_group(); group.depth > 0) {
    group.kept.push_back({entry, call});
    return NcclResult::kSuccess;
  }
  settle(*entry, call.comm);
  return entry->state() == Entry::State::kTaken ? run(*entry, call) : hand_on(call);
}

void Shim::settle(Entry& entry, NcclComm comm) {
  if (entry.state() == Entry::State::kUndecided) open(entry, comm);
}

void Shim::open(Entry& entry, NcclComm comm) {
  int rank = -1, device = -1;
  Why why;
  const Inside inside;
  const bool is_known = real_.user_rank(comm, &rank) == NcclResult::kSuccess &&
                        real_.device(comm, &device) == NcclResult::kSuccess;
  // A rank that does not know who it is must say no to the others, who wait for its vote.
  const int opened =
      entry.core().open(entry.seat(), is_known ? rank : -1, entry.num_ranks(), device, why);
  entry.decide(opened == 1 ? Entry::State::kTaken : Entry::State::kHandedOn);
  if (opened == 1)
    log::info("nccl", "communicator of {} ranks: taken over (rank {}, gpu {})", entry.num_ranks(),
              rank, device);
  else
    log::warn("nccl", "communicator of {} ranks is left to NCCL: {}", entry.num_ranks(),
              why.text());
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
  Why why;
  const int code = entry.core().run(entry.seat(), &asked, why);
  counts_.taken[static_cast<size_t>(call.op)].fetch_add(1, std::memory_order_relaxed);
  if (code == 0) return NcclResult::kSuccess;
  if (entry.error() == nullptr) log::error("nccl", "{}: {}", op_name(call.op), why.text());
  entry.fail(why.text());
  return result_of(code);
}

// ---- groups ----

NcclResult Shim::group_start() {
  if (depth_inside == 0) ++this_group().depth;
  const Inside inside;
  return real_.group_start();
}

NcclResult Shim::group_end() {
  Group& group = this_group();
  if (depth_inside == 0 && group.depth > 0 && --group.depth == 0) {
    Group ended;  // so that the group is empty again whatever happens
    std::swap(ended, group);
    return end_outermost(ended);
  }
  const Inside inside;
  return real_.group_end();
}

// Nothing is enqueued, and NCCL estimates what it sees: all of the group.
NcclResult Shim::group_simulate_end(void* simulation) {
  Group& group = this_group();
  if (depth_inside == 0 && group.depth > 0 && --group.depth == 0) {
    Group ended;
    std::swap(ended, group);
    for (const Kept& kept : ended.kept) (void)forward(kept.call);
  }
  const Inside inside;
  return real_.group_simulate_end(simulation);
}

NcclResult Shim::end_outermost(Group& group) {
  const auto end_real = [&] {
    NcclResult ended;
    {
      const Inside inside;
      ended = real_.group_end();
    }
    for (Group::Made& made : group.made) adopt(made.where, std::move(made.entry), ended);
    return ended;
  };
  // An argument was refused: like NCCL, nothing of the group is done.
  if (!is_good(group.error)) {
    const NcclResult ended = end_real();
    return is_good(ended) ? group.error : ended;
  }
  find_exchanges(group.kept);
  settle_all(group.kept);
  const NcclResult rest = hand_on_rest(group.kept);
  if (group.kept.empty() || !is_good(rest)) return end_real();
  if (const NcclResult joined = join_streams(group.kept); !is_good(joined)) {
    (void)end_real();
    return joined;
  }
  NcclResult ended = NcclResult::kSuccess;
  if (group.begins_with_real && !is_good(ended = end_real())) return ended;
  const NcclResult ran = run_all(group.kept);
  if (!group.begins_with_real) ended = end_real();
  if (!is_good(ran)) return ran;
  const NcclResult joined = join_streams(group.kept);
  return is_good(joined) ? ended : joined;
}

// In the order of their keys, which all ranks share: two ranks that meet the same communicators in
// another order would wait for each other.
void Shim::settle_all(std::vector<Kept>& kept) {
  std::vector<Kept*> order;
  for (Kept& each : kept)
    if (each.entry->state() == Entry::State::kUndecided) order.push_back(&each);
  std::stable_sort(order.begin(), order.end(),
                   [](const Kept* a, const Kept* b) { return a->entry->key() < b->entry->key(); });
  for (Kept* each : order) settle(*each->entry, each->call.comm);
}

/// Puts one all-to-all in the place of the sends and receives that form it.
void Shim::find_exchanges(std::vector<Kept>& kept) {
  const auto is_exchange = [](const Kept& each) {
    return each.call.op == Op::kSend || each.call.op == Op::kRecv;
  };
  for (size_t i = 0; i < kept.size(); ++i) {
    if (!is_exchange(kept[i])) continue;
    const std::shared_ptr<Entry> entry = kept[i].entry;
    const auto is_of_it = [&](const Kept& each) {
      return each.entry == entry && is_exchange(each);
    };
    std::vector<Call> calls;
    for (const Kept& each : kept)
      if (is_of_it(each)) calls.push_back(each.call);
    const std::optional<Call> whole = as_all_to_all(calls, entry->num_ranks());
    if (!whole || !may_take(*entry, *whole)) continue;
    kept[i].call = *whole;
    kept.erase(std::remove_if(kept.begin() + static_cast<long>(i) + 1, kept.end(), is_of_it),
               kept.end());
  }
}

/// What was kept and is not taken over after all goes into the real group, which is still open.
NcclResult Shim::hand_on_rest(std::vector<Kept>& kept) {
  NcclResult first = NcclResult::kSuccess;
  const auto is_rest = [&](const Kept& each) {
    const bool is_exchange = each.call.op == Op::kSend || each.call.op == Op::kRecv;
    if (!is_exchange && each.entry->state() == Entry::State::kTaken) return false;
    const NcclResult result = hand_on(each.call);
    if (is_good(first)) first = result;
    return true;
  };
  std::vector<Kept> taken;
  for (Kept& each : kept)
    if (!is_rest(each)) taken.push_back(std::move(each));
  kept.swap(taken);
  return first;
}

NcclResult Shim::run_all(const std::vector<Kept>& kept) {
  NcclResult first = NcclResult::kSuccess;
  for (const Kept& each : kept) {
    const NcclResult result = run(*each.entry, each.call);
    if (is_good(first)) first = result;
  }
  return first;
}

// The streams of a group wait for each other before it and after it.
NcclResult Shim::join_streams(const std::vector<Kept>& kept) {
  std::vector<void*> streams;
  for (const Kept& each : kept)
    if (std::find(streams.begin(), streams.end(), each.call.stream) == streams.end())
      streams.push_back(each.call.stream);
  if (streams.size() < 2) return NcclResult::kSuccess;
  Why why;
  Entry& entry = *kept.front().entry;
  const int code = entry.core().join(entry.seat(), streams.data(), streams.size(), why);
  if (code != 0) entry.fail(why.text());
  return result_of(code);
}

}  // namespace braid::nccl
