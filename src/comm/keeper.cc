#include "comm/keeper.h"

#include <chrono>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "comm/device/device.h"
#include "comm/state.h"
#include "sys/host/thread.h"

namespace braid::comm {

Result<std::unique_ptr<Keeper>> Keeper::start(Comm::State& state) {
  std::unique_ptr<Keeper> keeper(new Keeper(state));
  BRAID_ASSIGN_OR_RETURN(keeper->thread_, sys::start_thread("keeper of a comm",
                                                            [raw = keeper.get()] { raw->loop(); }));
  return keeper;
}

Keeper::~Keeper() {
  {
    const std::lock_guard lock(mutex_);
    must_stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// Every rank writes its flight record when one fails, also a rank that is busy elsewhere.
void Keeper::look_for_the_end() {
  if (state_.observer && state_.group->broken()) state_.observer->broken(state_.group->fate());
}

void Keeper::loop() {
  log::set_rank(state_.rank());
  int64_t sleep_ns = 1_ms;
  std::unique_lock lock(mutex_);
  while (!must_stop_) {
    wake_.wait_for(lock, std::chrono::nanoseconds(sleep_ns));
    if (must_stop_) return;
    look_for_the_end();
    const std::unique_lock lanes(state_.mutex, std::try_to_lock);
    if (!lanes.owns_lock()) {
      sleep_ns = 1_ms;
      continue;
    }
    const bool is_recent = now_ns() - state_.last_call_end_ns < 100_ms;
    const bool moved = state_.idle_progress();
    // close() takes the device away once it has marked the comm as closed, with this lock held.
    if (state_.observer && !state_.is_closed && state_.device) state_.device->call_watch().look();
    sleep_ns = is_recent || moved ? 1_ms : 20_ms;
  }
}

}  // namespace braid::comm
