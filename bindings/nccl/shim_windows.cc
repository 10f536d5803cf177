// Windows of symmetric memory: written down where they are made, mapped where all ranks come to a
// call that is taken over (windows.h).
#include "base/log.h"
#include "base/units.h"
#include "bindings/nccl/inside.h"
#include "bindings/nccl/shim.h"

namespace braid::nccl {

NcclResult Shim::add_window(NcclComm comm, void* memory, size_t bytes, void** window, int flags) {
  NcclResult made;
  {
    const Inside inside;
    made = real_.window_register(comm, memory, bytes, window, flags);
  }
  const bool is_symmetric = (flags & kSymmetric) != 0;
  if (passes() || !is_good(made) || !is_symmetric || window == nullptr) return made;
  const std::shared_ptr<Entry> entry = comms_.find(comm);
  if (entry == nullptr || entry->seat() == nullptr) return made;
  if (Group& group = this_group(); group.depth > 0)
    group.windows.push_back({entry, memory, bytes, window});
  else if (made == NcclResult::kInProgress)
    entry->windows().add(memory, bytes, nullptr, window);
  else
    entry->windows().add(memory, bytes, *window, nullptr);
  return made;
}

void Shim::add_windows(Group& group, NcclResult ended) {
  for (const Group::MadeWindow& made : group.windows) {
    if (ended == NcclResult::kSuccess)
      made.entry->windows().add(made.memory, made.bytes, *made.where, nullptr);
    else if (ended == NcclResult::kInProgress)
      made.entry->windows().add(made.memory, made.bytes, nullptr, made.where);
  }
  group.windows.clear();
}

void Shim::map_windows(Entry& entry) {
  const Inside inside;
  entry.windows().map_new([&](void* memory, uint64_t bytes) {
    Why why;
    if (entry.core().add_window(entry.seat(), memory, bytes, why) == 0) return true;
    log::info("nccl", "a window of {} is not used in place: {}", format_bytes(bytes), why.text());
    return false;
  });
}

NcclResult Shim::drop_window(NcclComm comm, void* window) {
  const std::shared_ptr<Entry> entry = passes() ? nullptr : comms_.find(comm);
  void* const memory = entry != nullptr ? entry->windows().drop(window) : nullptr;
  const Inside inside;
  if (memory != nullptr) {
    Why why;
    if (entry->core().drop_window(entry->seat(), memory, why) != 0)
      log::warn("nccl", "a window that was given back stays mapped: {}", why.text());
  }
  return real_.window_deregister(comm, window);
}

}  // namespace braid::nccl
