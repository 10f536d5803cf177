// Who moves an engine (turn.h), for how long it looks on for more, and how it sleeps.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/log.h"
#include "engine/cores.h"
#include "engine/spin.h"
#include "engine/worker.h"

namespace braid::engine {
namespace {
constexpr int kSleepMs = 50;          // beats and leases are looked at so often
constexpr int64_t kWorthNs = 50'000;  // to be woken takes about as long
}  // namespace

// --- threads that call, or wait ---

bool Worker::post(Call call) {
  if (run_at_once(call)) return true;
  {
    const std::lock_guard lock(mutex_);
    if (is_ending_) return false;
    calls_.push_back(std::move(call));
  }
  if (is_asleep_) wake_.signal();
  return true;
}

// Calls that other threads have handed over before go first.
bool Worker::run_at_once(const Call& call) {
  Turn& turn = *ground_.turn;
  if (!turn.is_open()) return false;
  bool is_worker_due = false;
  {
    const std::unique_lock mine(turn.mutex_, std::try_to_lock);
    if (!mine.owns_lock() || is_ending_) return false;
    // An answer may be here before the call has ended; the worker could not take the turn for it yet.
    wakes_.mute();
    (void)run_calls();
    call(*this);
    is_worker_due = leave_turn();
  }
  if (is_worker_due) turn.call_.signal();
  return true;
}

bool Worker::stand_in(const std::function<bool()>& is_over, Deadline deadline) {
  wakes_.mute();
  ground_.turn->is_rested_ = false;  // what it left is ours
  get_up();
  moved_at_ns_ = now_ns();
  while (!is_ending_) {
    const int64_t now = now_ns();
    const bool moved = round(now);
    if (is_over() || now >= deadline.at_ns()) break;
    if (!is_tired(moved, now, long_spin_ns()) || !lie_down()) continue;
    const int64_t left_ms = (deadline.left_ns() + 999'999) / 1'000'000;
    wakes_.sleep_in_turn(static_cast<int>(std::min<int64_t>(sleep_limit_ms(), left_ms)));
    get_up();
  }
  return leave_turn();
}

// The thread goes on with its own work: what is still to be done here is the worker's, and sockets
// wake the worker from now on. True: the worker must be called at once.
bool Worker::leave_turn() {
  is_asleep_ = true;  // before calls are looked for: whoever posts one wakes the worker
  const bool is_due = needs_worker();
  wakes_.unmute();
  return is_due;
}

// Whether the worker has something to do before a socket says so.
bool Worker::needs_worker() {
  {
    const std::lock_guard lock(mutex_);
    if (is_ending_ || !calls_.empty()) return true;
  }
  if (!acceptor_.is_empty() || !removals_.empty() || must_poll()) return true;
  const bool is_due = std::any_of(sources_.begin(), sources_.end(),
                                  [](const auto& entry) { return entry.second->needs_worker(); });
  const auto is_same = [](const pollfd& a, const pollfd& b) {
    return a.fd == b.fd && a.events == b.events;
  };
  const std::vector<pollfd> now = sockets();
  return is_due || !std::equal(now.begin(), now.end(), watched_.begin(), watched_.end(), is_same);
}

// --- the worker's own thread ---

void Worker::serve() {
  if (ground_.gpu != nullptr) {
    if (const Status used = ground_.gpu->use(); !used.ok())
      log::error("engine", "'{}': {}", ground_.self.name, used.message());
  }
  settle_worker(ground_);
  Turn& turn = *ground_.turn;
  {
    const std::lock_guard mine(turn.mutex_);
    turn.worker_ = this;
    // A GPU's context is of one thread: nobody else moves an engine that has one.
    turn.is_open_ = ground_.gpu == nullptr;
  }
  bool goes_on = true;
  while (goes_on) {
    int limit_ms = kSleepMs;
    if (const std::unique_lock mine(turn.mutex_, std::try_to_lock); !mine.owns_lock()) {
      // A call has the turn. What woke us would wake us again and again until it is through.
      std::this_thread::sleep_for(std::chrono::nanoseconds(kMomentNs));
    } else {
      get_up();
      turn.is_rested_ = false;
      wakes_.unmute();
      goes_on = move_as_worker();
      limit_ms = sleep_limit_ms();
    }
    if (goes_on) wakes_.sleep_as_worker(limit_ms);
    turn.call_.drain();
  }
}

// Until there is nothing to do, or a thread that waits would do it. False: the engine has ended.
bool Worker::move_as_worker() {
  Turn& turn = *ground_.turn;
  while (true) {
    const int64_t now = now_ns();
    const bool moved = round(now);
    if (is_ending_) {
      const std::lock_guard lock(mutex_);
      if (calls_.empty()) break;
      continue;
    }
    if (turn.is_open_ && turn.is_wanted()) {
      turn.is_rested_ = true;
      if (turn.is_wanted()) {
        is_asleep_ = true;
        wakes_.mute();
        return true;
      }
      turn.is_rested_ = false;
    }
    if (is_tired(moved, now, 0) && lie_down()) return true;
  }
  end();
  turn.is_open_ = false;
  turn.worker_ = nullptr;
  return false;
}

// --- to look on, or to sleep ---

bool Worker::must_poll() const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [](const auto& entry) { return entry.second->must_poll(); }) ||
         std::any_of(targets_.begin(), targets_.end(),
                     [](const auto& entry) { return entry.second->must_poll(); });
}

bool Worker::is_hot(int64_t now) const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [&](const auto& entry) { return entry.second->is_hot(now); });
}

bool Worker::is_pressed() const {
  return !removals_.empty() || std::any_of(sources_.begin(), sources_.end(), [](const auto& entry) {
    return !entry.second->is_idle();
  });
}

// Whether nothing has come for so long that it is time to sleep. What came soon after all was quiet is
// worth to be looked for the next time, too; what did not is not.
bool Worker::is_tired(bool moved, int64_t now, int64_t least_spin_ns) {
  if (moved) {
    if (was_idle_) spin_ns_ = now - moved_at_ns_ < kWorthNs ? kWorthNs : short_spin_ns();
    was_idle_ = false;
    moved_at_ns_ = now;
    return false;
  }
  was_idle_ = true;
  if (now - moved_at_ns_ < std::max(spin_ns_, least_spin_ns)) return false;
  if (!must_poll() && !is_hot(now)) return true;
  // Peers may share the core, and it is they who have something to do. Not after every look: on
  // a machine with other work each yield may last for a slice of all of it.
  constexpr int64_t kYieldEveryNs = 100'000;
  if (now - yielded_at_ns_ < kYieldEveryNs) return false;
  ::sched_yield();
  yielded_at_ns_ = now_ns();
  return false;
}

// A thread that posts a call signals us if we have said that we sleep. So we say it before we look
// for calls the last time. False: there are some.
bool Worker::lie_down() {
  is_asleep_ = true;
  bool is_due = false;
  {
    const std::lock_guard lock(mutex_);
    is_due = !calls_.empty() || is_ending_;
  }
  if (is_due) {
    get_up();
    return false;
  }
  watched_ = sockets();
  wakes_.watch(watched_);
  return true;
}

// Whatever woke us, more of it may follow at once.
void Worker::get_up() {
  if (!is_asleep_) return;
  is_asleep_ = false;
  wake_.drain();
  acceptor_.look_soon();
}

int Worker::sleep_limit_ms() const {
  return is_pressed() ? static_cast<int>(kTickNs / 1'000'000) : kSleepMs;
}

std::vector<pollfd> Worker::sockets() const {
  std::vector<pollfd> out = acceptor_.sockets(now_ns());
  for (const auto& [incarnation, source] : sources_)
    if (source->fd() >= 0) out.push_back({source->fd(), source->events(), 0});
  for (const auto& [session, target] : targets_)
    if (target->fd() >= 0) out.push_back({target->fd(), target->events(), 0});
  return out;
}

}  // namespace braid::engine
