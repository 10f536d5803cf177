// The end of a group. Its order is the same for all groups of all ranks, whatever is in them: a
// rank may have calls in its group that its peers do not see.
//
//   0. communicators that were aborted in it are closed, on a thread each. All of their work has
//      been interrupted by now, ours and NCCL's: one's may lie on its stream behind another's
//   1. the real group ends, with what was handed on at once; beside it, on a thread each, the
//      communicators are set up that have not been, and windows mapped that are new; behind it
//      braid and NCCL race in operations that are called first (shim_races.cc)
//   2. what is not taken over after all goes into a second real group (or into the first one, when
//      there was nothing to set up)
//   3. what is taken over runs, by communicator in the order of their keys
//
// Step 1 is where a rank waits for others. It comes to all of them at once, so that two ranks that
// meet the same communicators in another order, or one of them outside any group, do not wait for
// each other crosswise.
#include <algorithm>
#include <latch>
#include <map>
#include <optional>
#include <utility>

#include "base/log.h"
#include "bindings/nccl/inside.h"
#include "bindings/nccl/shim.h"
#include "bindings/nccl/threads.h"

namespace braid::nccl {

Shim::Group& Shim::this_group() {
  thread_local Group group;
  return group;
}

NcclResult Shim::group_start() {
  if (!passes()) ++this_group().depth;
  const ReentryGuard guard;
  return real_.group_start();
}

/// What was kept of the group that ends now; nothing when it is an inner one or none of ours. This
/// thread's group is empty again then, whatever happens.
std::optional<Shim::Group> Shim::ended_group() {
  Group& group = this_group();
  if (passes() || group.depth == 0) return std::nullopt;
  --group.depth;
  if (group.depth > 0) return std::nullopt;
  return std::exchange(group, Group{});
}

NcclResult Shim::group_end() {
  if (std::optional<Group> ended = ended_group()) return end_outermost(*ended);
  const ReentryGuard guard;
  return real_.group_end();
}

void Shim::break_off(Group& group) {
  side_by_side(group.aborted.size(), [&](size_t i) noexcept { part(group.aborted[i], false); });
  group.aborted.clear();
}

// Nothing is enqueued, and NCCL estimates what it sees: all of the group.
NcclResult Shim::group_simulate_end(void* simulation) {
  if (std::optional<Group> ended = ended_group()) {
    break_off(*ended);
    for (const Kept& kept : ended->kept) (void)forward(kept.call);
  }
  const ReentryGuard guard;
  return real_.group_simulate_end(simulation);
}

NcclResult Shim::end_real(Group& group) {
  NcclResult ended;
  group.is_open = false;
  {
    const ReentryGuard guard;
    ended = real_.group_end();
  }
  for (Group::Made& made : group.made) adopt(made.where, std::move(made.entry), ended);
  group.made.clear();  // a second real group may follow
  note_windows(group, ended);
  return ended;
}

NcclResult Shim::end_outermost(Group& group) {
  break_off(group);
  // An argument was refused: like NCCL, nothing of the group is done.
  if (!is_good(group.error)) {
    const NcclResult ended = end_real(group);
    return is_good(ended) ? group.error : ended;
  }
  find_exchanges(group.kept);
  NcclResult ended = settle_beside(group);
  if (!is_good(ended)) return ended;
  const NcclResult rest = hand_on_rest(group);
  if (group.is_open) ended = end_real(group);
  if (!is_good(rest) || !is_good(ended)) return is_good(rest) ? ended : rest;
  const NcclResult ran = run_joined(group);
  return is_good(ran) ? ended : ran;
}

/// Windows that are made in the group itself are known at its end, and belong to its calls too.
std::map<Entry*, Shim::Needs> Shim::needs_of(const Group& group) const {
  std::map<Entry*, Needs> all;
  for (const Kept& each : group.kept) {
    if (is_exchange(each.call)) continue;  // of some ranks alone: the others do not come
    Entry* const entry = each.entry.get();
    const bool has_window =
        std::any_of(group.windows.begin(), group.windows.end(),
                    [&](const MadeWindow& made) { return made.entry.get() == entry; });
    if (!has_window && races_before(*entry, each.call).empty() && !entry->must_settle()) continue;
    const bool is_first = !all.contains(entry);
    Needs& needs = all[entry];
    if (is_first || goes_over_nodes(settings_, each.call, entry->num_ranks()))
      needs.op = each.call.op;
    needs.comm = each.call.comm;
    needs.has_window = has_window;
    // Asked on the program's own thread: its default stream may be another one elsewhere.
    if (!is_captured(*entry, each.call)) needs.calls.push_back(each.call);
  }
  return all;
}

/// A race waits for the real group's end, which may have calls of the same communicator that the other
/// ranks have made by then, too; and so do windows that the group makes.
void Shim::settle_one(Entry& entry, const Needs& needs, const std::latch& real_end) {
  if (entry.state() == Entry::State::kUndecided) open(entry, needs.op);
  if (needs.has_window) real_end.wait();
  settle(entry, needs.op);
  Races races;
  for (const Call& call : needs.calls) races.merge(races_before(entry, call));
  if (!races.empty()) real_end.wait();
  race_all(entry, needs.comm, races);
}

/// Ends the real group meanwhile, if there is anything to set up.
NcclResult Shim::settle_beside(Group& group) {
  const std::map<Entry*, Needs> unsettled = needs_of(group);
  if (unsettled.empty()) return NcclResult::kSuccess;
  std::latch real_end(1);
  Beside settling;
  for (const auto& each : unsettled)
    settling.begin([this, &real_end, entry = each.first, &needs = each.second]() noexcept {
      settle_one(*entry, needs, real_end);
    });
  const NcclResult ended = end_real(group);
  real_end.count_down();
  settling.join();
  return ended;
}

/// Puts one all-to-all in the place of the sends and receives that form it.
void Shim::find_exchanges(std::vector<Kept>& kept) {
  for (size_t i = 0; i < kept.size(); ++i) {
    if (!is_exchange(kept[i].call)) continue;
    const std::shared_ptr<Entry> entry = kept[i].entry;
    const auto is_of_it = [&](const Kept& each) {
      return each.entry == entry && is_exchange(each.call);
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

/// What was kept and is not taken over after all goes to NCCL.
NcclResult Shim::hand_on_rest(Group& group) {
  const auto is_taken = [this](const Kept& each) {
    return !is_exchange(each.call) && is_ours(*each.entry, each.call);
  };
  std::vector<Kept>& kept = group.kept;
  const auto rest = std::stable_partition(kept.begin(), kept.end(), is_taken);
  NcclResult first = NcclResult::kSuccess;
  if (rest != kept.end() && !group.is_open) {
    const ReentryGuard guard;
    first = real_.group_start();
    group.is_open = true;
  }
  for (auto each = rest; each != kept.end(); ++each) {
    if (!each->entry->is_given_up()) leave(each->entry.get(), each->call);
    const NcclResult result = each->entry->is_given_up() ? refuse(each->call) : hand_on(each->call);
    if (is_good(first)) first = result;
    group.beside.push_back(*each);
  }
  kept.erase(rest, kept.end());
  return first;
}

NcclResult Shim::run_joined(const Group& group) {
  const std::vector<Kept>& kept = group.kept;
  if (kept.empty()) return NcclResult::kSuccess;
  if (kept.size() == 1 && group.beside.empty()) return run(*kept[0].entry, kept[0].call);
  std::vector<Kept> ordered = kept;
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const Kept& a, const Kept& b) { return a.entry->key() < b.entry->key(); });
  const NcclResult before = join_streams(ordered, group.beside);
  if (!is_good(before)) return before;
  if (const NcclResult ran = run_all(ordered); !is_good(ran)) return ran;
  return join_streams(ordered, group.beside);
}

// Enqueuing waits when a stream is full of work that waits for other ranks. So ranks of one
// communicator do not wait for this thread to come to them: each GPU has a thread, unless the
// group's work is too little to fill a stream, or a stream is another one in another thread.
NcclResult Shim::run_all(const std::vector<Kept>& kept) {
  std::map<int, std::vector<const Kept*>> by_device;
  const bool is_apart = fills_streams(kept) && meets_itself(kept) && !has_own_streams(kept);
  for (const Kept& each : kept) by_device[is_apart ? each.entry->device() : 0].push_back(&each);
  std::vector<const std::vector<const Kept*>*> parts;
  for (const auto& [device, part] : by_device) parts.push_back(&part);
  std::vector<NcclResult> results(parts.size(), NcclResult::kSuccess);
  side_by_side(parts.size(), [&](size_t i) noexcept {
    for (const Kept* const each : *parts[i]) {
      const NcclResult result = run(*each->entry, each->call);
      if (is_good(results[i])) results[i] = result;
    }
  });
  const auto bad = std::find_if_not(results.begin(), results.end(), is_good);
  return bad == results.end() ? NcclResult::kSuccess : *bad;
}

/// Streams hold about a thousand pieces of work. A message below a few MiB is one kernel.
bool Shim::fills_streams(const std::vector<Kept>& kept) {
  constexpr uint64_t kFewCalls = 64, kFewBytes = 1 << 20;
  return kept.size() > kFewCalls || std::any_of(kept.begin(), kept.end(), [](const Kept& each) {
           return bytes_of(each.call, each.entry->num_ranks()) > kFewBytes;
         });
}

/// Whether a call is on the thread's own default stream, which every thread calls by one name.
bool Shim::has_own_streams(const std::vector<Kept>& kept) {
  const auto per_thread = reinterpret_cast<void*>(uintptr_t{2});  // cudaStreamPerThread
  return std::any_of(kept.begin(), kept.end(),
                     [&](const Kept& each) { return each.call.stream == per_thread; });
}

/// Whether several ranks of one communicator are in it. It is ordered by their keys.
bool Shim::meets_itself(const std::vector<Kept>& kept) {
  for (size_t first = 0, i = 0; i < kept.size(); ++i) {
    if (kept[i].entry->key() != kept[first].entry->key()) first = i;
    if (kept[i].entry != kept[first].entry) return true;
  }
  return false;
}

// The streams of a group wait for each other before it and after it: those of a GPU, for the ranks
// of a communicator wait for each other anyway; and those of NCCL's calls in it on the same
// communicators. The default stream of every GPU is called null.
NcclResult Shim::join_streams(const std::vector<Kept>& kept, const std::vector<Kept>& beside) {
  struct Streams {
    Entry* entry;
    std::vector<void*> all;
  };
  std::map<int, Streams> by_device;
  const auto add = [&](const Kept& each) {
    std::vector<void*>& known =
        by_device.try_emplace(each.entry->device(), Streams{each.entry.get(), {}})
            .first->second.all;
    if (std::find(known.begin(), known.end(), each.call.stream) == known.end())
      known.push_back(each.call.stream);
  };
  for (const Kept& each : kept) add(each);
  for (const Kept& each : beside)
    if (std::any_of(kept.begin(), kept.end(),
                    [&](const Kept& one) { return one.entry == each.entry; }))
      add(each);
  for (const auto& [device, streams] : by_device) {
    if (streams.all.size() < 2) continue;
    ErrorText why;
    const int code = streams.entry->core().join(streams.entry->seat(), streams.all.data(),
                                                streams.all.size(), why);
    if (code == 0) continue;
    streams.entry->fail(why.text());
    return result_of(code);
  }
  return NcclResult::kSuccess;
}

}  // namespace braid::nccl
