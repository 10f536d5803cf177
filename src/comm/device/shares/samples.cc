#include "comm/device/shares/samples.h"

#include <algorithm>
#include <atomic>

namespace braid::comm {

// Times are written with release order and read with acquire order, each of them: whoever reads a
// new one then also sees that the number was cleared before it.
void Samples::publish(uint64_t number, const CallTimes& times) {
  Place& place = pages_[static_cast<size_t>(rank_)]->places[number % kKept];
  std::atomic_ref(place.number).store(0, std::memory_order_relaxed);
  std::atomic_ref(place.base_ns).store(times.base_ns, std::memory_order_release);
  std::atomic_ref(place.beside_ns).store(times.beside_ns, std::memory_order_release);
  std::atomic_ref(place.number).store(number, std::memory_order_release);
}

std::optional<CallTimes> Samples::of(int rank, uint64_t number) const {
  Place& place = pages_[static_cast<size_t>(rank)]->places[number % kKept];
  const std::atomic_ref kept(place.number);
  if (kept.load(std::memory_order_acquire) != number) return std::nullopt;
  CallTimes times;
  times.base_ns = std::atomic_ref(place.base_ns).load(std::memory_order_acquire);
  times.beside_ns = std::atomic_ref(place.beside_ns).load(std::memory_order_acquire);
  if (kept.load(std::memory_order_relaxed) != number) return std::nullopt;
  return times;
}

std::optional<CallTimes> Samples::of_all(uint64_t number) const {
  CallTimes latest;
  for (size_t r = 0; r < pages_.size(); ++r) {
    const auto times = of(static_cast<int>(r), number);
    if (!times) return std::nullopt;
    latest.base_ns = std::max(latest.base_ns, times->base_ns);
    latest.beside_ns = std::max(latest.beside_ns, times->beside_ns);
  }
  return latest;
}

}  // namespace braid::comm
