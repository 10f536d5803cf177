// Windows of symmetric memory: written down where they are made, mapped where all ranks come to a
// call that is taken over (windows.h).
#include <algorithm>

#include "base/log.h"
#include "base/units.h"
#include "bindings/nccl/inside.h"
#include "bindings/nccl/shim.h"

namespace braid::nccl {

// What the real library says at once is no word about the window where it works in the background:
// 2.28 and later answer success then.
NcclResult Shim::add_window(NcclComm comm, void* memory, size_t bytes, void** window, int flags) {
  const bool is_symmetric = (flags & kSymmetric) != 0;
  const std::shared_ptr<Entry> entry =
      passes() || !is_symmetric || window == nullptr ? nullptr : comms_.find(comm);
  const ReentryGuard guard;
  if (entry == nullptr || entry->seat() == nullptr)
    return real_.window_register(comm, memory, bytes, window, flags);
  *window = nullptr;  // some leave it as it is where they have no use for it
  const NcclResult made = real_.window_register(comm, memory, bytes, window, flags);
  if (!is_good(made)) return made;
  const MadeWindow one{entry, comm, memory, bytes, window};
  if (Group& group = this_group(); group.depth > 0)
    group.windows.push_back(one);
  else
    note_window(one);
  return made;
}

void Shim::note_window(const MadeWindow& made) {
  Windows& windows = made.entry->windows();
  NcclResult now = NcclResult::kSuccess;
  const ReentryGuard guard;
  if (real_.get_async_error(made.comm, &now) == NcclResult::kSuccess &&
      now == NcclResult::kInProgress)
    windows.add_unfinished(made.memory, made.bytes, made.where);
  else
    windows.add(made.memory, made.bytes, *made.where);
}

void Shim::note_windows(Group& group, NcclResult ended) {
  if (is_good(ended))
    for (const MadeWindow& made : group.windows) note_window(made);
  group.windows.clear();
}

/// Whether in windows it is another matter. Between nodes nothing goes through them. Broadcasts are as fast
/// in them as elsewhere, with either library (docs/measured/nccl.md), and NCCL's have been seen not to end there
/// (python/braid/bench/nccl.py): they are not tried. Messages may lie in windows on some ranks alone.
bool Shim::minds_windows(const Entry& entry, const Call& call) const {
  return settings_.chosen_by == ChosenBy::kRace && !entry.is_over_nodes() &&
         call.op != Op::kBroadcast && !call.is_of_messages;
}

/// Of a collective call, in those that are mapped. All ranks see it alike, for NCCL has the program use
/// symmetric windows on all of them at the same offsets, and they are mapped on all of them or on none.
bool Shim::is_in_windows(const Entry& entry, const Call& call) const {
  return minds_windows(entry, call) &&
         entry.windows().has(shared_memory(call), bytes_of(call, entry.num_ranks()));
}

/// Whether a call would lie in one that is not mapped yet, or that the group of this thread makes. Those
/// that have none such do not wait for any to be mapped.
bool Shim::may_be_in_new_window(const Entry& entry, const Call& call) const {
  if (!minds_windows(entry, call)) return false;
  const void* const memory = shared_memory(call);
  const uint64_t bytes = bytes_of(call, entry.num_ranks());
  const std::vector<MadeWindow>& made = this_group().windows;
  return entry.windows().has_new(memory, bytes) ||
         std::any_of(made.begin(), made.end(), [&](const MadeWindow& one) {
           return one.entry.get() == &entry &&
                  WindowSpan{one.memory, one.bytes}.holds(memory, bytes);
         });
}

void Shim::map_windows(Entry& entry) {
  const ReentryGuard guard;
  entry.windows().map_new([&](void* memory, uint64_t bytes) {
    ErrorText why;
    if (entry.core().add_window(entry.seat(), memory, bytes, why) == 0) return true;
    log::info("nccl", "a window of {} is not used in place: {}", format_bytes(bytes), why.text());
    return false;
  });
}

NcclResult Shim::drop_window(NcclComm comm, void* window) {
  const std::shared_ptr<Entry> entry = passes() ? nullptr : comms_.find(comm);
  void* const memory = entry != nullptr ? entry->windows().drop(window) : nullptr;
  const ReentryGuard guard;
  if (memory != nullptr) {
    ErrorText why;
    if (entry->core().drop_window(entry->seat(), memory, why) != 0)
      log::warn("nccl", "a window that was given back stays mapped: {}", why.text());
  }
  return real_.window_deregister(comm, window);
}

}  // namespace braid::nccl
