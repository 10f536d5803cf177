#include "coll/host/waiter.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <climits>

#include "base/clock.h"
#include "base/units.h"

namespace braid::coll {

namespace {
// A round looks at every lane and costs some tenths of a microsecond: about 20 us of spinning, then
// sleep.
constexpr int kSpinRounds = 100;
// With more ranks than cores a yield hands the core to the peer that we wait for.
constexpr int kYieldRounds = 40;
// So that a broken group is seen within a millisecond.
constexpr int64_t kLongestSleepNs = 1'000'000;
}  // namespace

Waiter::Waiter(comm::Comm::State& state)
    : state_(state),
      spin_rounds_(state.is_oversubscribed ? 0 : kSpinRounds),
      yield_rounds_(state.is_oversubscribed ? kYieldRounds : 0) {}

bool Waiter::progress_all() {
  bool any = false;
  for (comm::LinkState& link : state_.links) any |= link.lane->progress();
  return any;
}

int64_t Waiter::next_event_ns() const {
  int64_t next = INT64_MAX;
  for (const comm::LinkState& link : state_.links)
    next = std::min(next, link.lane->next_event_ns());
  return next;
}

bool Waiter::wait() {
  if (idle_rounds_ < INT_MAX) ++idle_rounds_;
  if (idle_rounds_ <= spin_rounds_) {
    _mm_pause();
    return false;
  }
  if (idle_rounds_ <= spin_rounds_ + yield_rounds_) {
    sched_yield();
    return false;
  }
  state_.doorbell->arm();
  if (progress_all()) {
    state_.doorbell->disarm();
    return true;
  }
  const int64_t now = now_ns();
  const int64_t until = std::min(next_event_ns(), now + kLongestSleepNs);
  if (until > now) {
    state_.doorbell->sleep(until);
    return false;
  }
  state_.doorbell->disarm();  // a lane wants to be polled at once: let others run between two polls
  sched_yield();
  return false;
}

}  // namespace braid::coll
