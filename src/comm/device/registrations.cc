#include "comm/device/registrations.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "sys/cuda/owned.h"

namespace braid::comm {

Registrations::Registrations(Comm::State& state, sys::Cuda& cuda, int ordinal, CallOrder& order)
    : state_(state),
      cuda_(cuda),
      ordinal_(ordinal),
      timeout_ns_(state.config.duration_ns("BRAID_TIMEOUT")),
      order_(order) {}

Status Registrations::add(sys::DevicePtr memory, uint64_t bytes) {
  const Deadline until = deadline();
  BRAID_RETURN_IF_ERROR(cuda_.use_device(ordinal_));
  Status refusal = close_forgotten();  // told to all: they wait for this rank
  const auto facts = cuda_.pointer_facts(memory);
  if (refusal.ok()) refusal = facts.status();
  if (refusal.ok()) refusal = check_apart(memory, bytes);
  BRAID_ASSIGN_OR_RETURN(
      nvlink::Window window,
      nvlink::share_window(*state_.group, cuda_,
                           {"registered memory", ordinal_, memory, bytes, std::move(refusal)},
                           until));
  entries_[memory] = {bytes, facts.value().buffer_id, std::move(window), ++num_added_,
                      order_.num_captured()};
  return {};
}

// A span in two registrations would be found in one of them on this rank, and maybe in the other
// one elsewhere.
Status Registrations::check_apart(sys::DevicePtr memory, uint64_t bytes) const {
  auto next = entries_.lower_bound(memory);
  if (next != entries_.end() && next->first - memory < std::max<uint64_t>(bytes, 1))
    return invalid_argument("memory at {:#x}, {} bytes: that at {:#x} is registered already",
                            memory, bytes, next->first);
  if (next == entries_.begin()) return {};
  const auto& [base, entry] = *--next;
  if (memory - base >= entry.bytes) return {};
  return invalid_argument("memory at {:#x} is registered already, in {} bytes at {:#x}", memory,
                          entry.bytes, base);
}

Status Registrations::remove(sys::DevicePtr memory) {
  const auto found = entries_.find(memory);
  const bool is_in_graph = found != entries_.end() && may_be_in_graph(found->second);
  BRAID_RETURN_IF_ERROR(cuda_.use_device(ordinal_));  // maybe another thread than the last time
  if (is_in_graph) BRAID_RETURN_IF_ERROR(finish_graphs());
  BRAID_RETURN_IF_ERROR(forget(memory));
  BRAID_RETURN_IF_ERROR(close_forgotten());
  return state_.group->barrier("unregister", deadline());
}

Status Registrations::forget(sys::DevicePtr memory) {
  const auto found = entries_.find(memory);
  if (found == entries_.end()) return invalid_argument("memory at {:#x} is not registered", memory);
  forgotten_.push_back(std::move(found->second));
  entries_.erase(found);
  return {};
}

Status Registrations::finish_graphs() {
  BRAID_RETURN_IF_ERROR(order_.expect_no_capture());
  const Status finished = cuda_.synchronize_device();
  if (finished.ok()) return {};
  return invalid_argument("a graph may use this memory, and cannot be waited for: {}",
                          finished.message());
}

Status Registrations::close_forgotten() {
  if (forgotten_.empty()) return {};
  BRAID_RETURN_IF_ERROR(order_.finish_last_call());
  forgotten_.clear();
  return {};
}

void Registrations::close() {
  entries_.clear();
  forgotten_.clear();
}

/// Of memory of cuMemCreate. That it is not is noted once.
bool Registrations::is_current(Entry& entry, sys::DevicePtr memory, uint64_t bytes) {
  const sys::RelaxedCapture relaxed(cuda_);
  if (entry.window.is_current(memory, bytes)) return true;
  if (!std::exchange(entry.was_remapped, true)) {
    std::string line = fmt::format(
        "gpu {}: registered memory at {:#x} was unmapped since; calls on it go through scratch",
        ordinal_, memory);
    log::warn("comm", "{}", line);
    state_.note_event(std::move(line));
  }
  return false;
}

Result<SymmetricAddress> Registrations::find(sys::DevicePtr memory, uint64_t bytes) {
  auto next = entries_.upper_bound(memory);
  if (next == entries_.begin()) return SymmetricAddress{};
  auto& [base, entry] = *--next;
  if (memory >= base + entry.bytes || memory + bytes > base + entry.bytes)
    return SymmetricAddress{};
  if (entry.window.is_mapped_memory())
    return is_current(entry, memory, bytes)
               ? SymmetricAddress{&entry.window, memory - base, entry.number}
               : SymmetricAddress{};
  BRAID_ASSIGN_OR_RETURN(const sys::PointerFacts facts, cuda_.pointer_facts(memory));
  if (facts.buffer_id != entry.buffer_id)
    return invalid_argument("memory at {:#x} was registered, freed, and allocated anew", memory);
  return SymmetricAddress{&entry.window, memory - base, entry.number};
}

Registrations::Summary Registrations::summary() const {
  Summary found;
  for (const auto& [memory, entry] : entries_) {
    ++found.spans;
    found.bytes += entry.bytes;
    found.remapped += entry.was_remapped ? 1 : 0;
  }
  return found;
}

}  // namespace braid::comm
