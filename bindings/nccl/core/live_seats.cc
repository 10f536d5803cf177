#include "bindings/nccl/core/live_seats.h"

#include <cstdlib>

#include "bindings/nccl/core/seat.h"
#include "sys/host/api.h"

namespace braid::nccl {

LiveSeats::LiveSeats() : owner_(sys::process_id()) {}

// Never destroyed: threads may still use seats while the process ends.
LiveSeats& LiveSeats::all() {
  static LiveSeats* const kThe = [] {
    auto* made = new LiveSeats;
    std::atexit([] { all().leave(); });
    return made;
  }();
  return *kThe;
}

void LiveSeats::add(Seat* seat) {
  const std::lock_guard lock(mutex_);
  seats_.insert(seat);
}

void LiveSeats::remove(Seat* seat) {
  const std::lock_guard lock(mutex_);
  seats_.erase(seat);
}

void LiveSeats::leave() {
  if (sys::process_id() != owner_) return;  // a fork has none of the threads
  const std::lock_guard lock(mutex_);
  for (Seat* seat : seats_) seat->leave();
}

}  // namespace braid::nccl
