#include "engine/worker.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/log.h"
#include "engine/cores.h"
#include "engine/spin.h"
#include "sys/host/thread.h"

namespace braid::engine {
namespace {
constexpr int64_t kTickNs = 5'000'000;
constexpr int kSleepMs = 50;  // beats and leases are looked at so often
constexpr int64_t kRemovalNs = 1'000'000'000;
constexpr int64_t kMomentNs = 20'000;
constexpr int64_t kWorthNs = 50'000;  // to be woken takes about as long
}  // namespace

Worker::Worker(Ground& ground, std::vector<sys::PrivateFd> listeners, sys::Wake wake, WakeSet wakes)
    : ground_(ground),
      acceptor_(ground, std::move(listeners),
                {[this](const Introduction& asked) { return recall(asked); },
                 [this](const Introduction& told, ControlSocket socket) {
                   targets_[told.session]->attach(std::move(socket), told.peer_received);
                 }}),
      wake_(std::move(wake)),
      wakes_(std::move(wakes)) {}

Status Worker::begin() {
  BRAID_ASSIGN_OR_RETURN(thread_, sys::start_thread("worker of an engine", [this] { serve(); }));
  return {};
}

void Worker::close() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  wake_.signal();
  ground_.turn->call_.signal();
  if (thread_.joinable()) thread_.join();
}

// --- whose turn it is ---

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

bool Worker::round(int64_t now) {
  bool moved = run_calls();
  if (now >= look_at_ns_) look_at_memory(now);
  moved |= progress(now);
  moved |= converse(now);
  if (moved && !removals_.empty()) tick_removals(now);
  if (now >= tick_at_ns_) tick(now);
  return moved;
}

bool Worker::run_calls() {
  std::vector<Call> calls;
  {
    const std::lock_guard lock(mutex_);
    calls.swap(calls_);
  }
  for (const Call& call : calls) call(*this);
  return !calls.empty();
}

bool Worker::progress(int64_t now) {
  bool moved = false;
  for (const auto& [incarnation, source] : sources_) moved |= source->progress(now);
  for (const auto& [session, target] : targets_) moved |= target->progress();
  return moved;
}

// Before the rails of targets are polled: a provider in software moves bytes into memory then, and would
// end this process where there is none. A look at a region takes 0.2 us: a hundredth of the time.
void Worker::look_at_memory(int64_t now) {
  constexpr int64_t kEveryNs = 1'000'000;
  constexpr int64_t kEachNs = 20'000;
  const bool has_rails = std::any_of(targets_.begin(), targets_.end(),
                                     [](const auto& entry) { return entry.second->has_rails(); });
  const std::vector<uint64_t> freed =
      has_rails ? ground_.regions.take_freed() : std::vector<uint64_t>();
  for (const auto& [session, target] : targets_) {
    if (!freed.empty()) target->fence_rails();
    for (const uint64_t region : freed) target->tell_gone(region);
  }
  const auto count = static_cast<int64_t>(ground_.regions.count());
  look_at_ns_ = now + std::max(kEveryNs, kEachNs * count);
}

// Every socket is tried, without asking first which one is ready: a few calls that find nothing
// cost less than a list made anew. While rails are busy, an eighth of the time.
bool Worker::converse(int64_t now) {
  constexpr int64_t kTimesAsLong = 7;
  constexpr int64_t kMostNs = 25'000;
  if (now < converse_at_ns_ && must_poll()) return false;
  bool moved = acceptor_.progress(now);
  for (const auto& [incarnation, source] : sources_) moved |= source->converse(now);
  for (const auto& [session, target] : targets_) moved |= target->converse();
  const int64_t then = now_ns();
  converse_at_ns_ = then + std::min(kMostNs, kTimesAsLong * (then - now));
  return moved;
}

// A source that comes with a new session has given its old one up: what that could still let in
// must not land any more.
std::optional<uint64_t> Worker::recall(const Introduction& asked) {
  const auto found = targets_.find(asked.session);
  if (found != targets_.end() && !found->second->is_lost()) return found->second->received();
  if (asked.peer_received != 0 || found != targets_.end()) return {};
  std::erase_if(targets_, [&](const auto& entry) {
    const bool is_old = entry.second->source() == asked.peer;
    if (is_old) entry.second->fence_rails();
    return is_old;
  });
  Target& target =
      *targets_.emplace(asked.session, std::make_unique<Target>(ground_, asked.peer)).first->second;
  // It may have an old descriptor of what is still registered.
  for (const uint64_t region : ground_.regions.all_hidden()) target.tell_gone(region);
  return 0;
}

// --- calls ---

Source* Worker::find_source(const Incarnation& target) const {
  const auto [first, last] = sources_.equal_range(target);
  const auto found = std::find_if(first, last, [](const auto& entry) {
    return !entry.second->is_lost() && !entry.second->is_leaving();
  });
  return found == last ? nullptr : found->second.get();
}

Source& Worker::source_for(const Address& target) {
  if (Source* found = find_source(target.incarnation); found != nullptr) return *found;
  return *sources_.emplace(target.incarnation, std::make_unique<Source>(ground_, target))->second;
}

void Worker::cancel(uint64_t transfer, const Status& why) {
  for (const auto& [incarnation, source] : sources_) source->cancel(transfer, why);
}

void Worker::disconnect(const Incarnation& peer) {
  Source* source = find_source(peer);
  if (source == nullptr) return;
  source->leave(cancelled("disconnected from '{}'", source->target().name));
  drop_lost();
}

void Worker::remove_region(uint64_t region, const TicketPtr& ticket) {
  for (const auto& [session, target] : targets_) target->tell_gone(region);
  removals_.push_back({region, ticket, now_ns() + kRemovalNs,
                       ground_.gpu != nullptr ? ground_.gpu->last_mark() : 0});
  tick_removals(now_ns());
}

std::vector<std::string> Worker::describe() const {
  std::vector<std::string> out = {"worker: " + ground_.worker_cores};
  for (const auto& [incarnation, source] : sources_) out.push_back(source->describe());
  for (const auto& [session, target] : targets_) out.push_back(target->describe());
  return out;
}

// --- time ---

void Worker::tick(int64_t now) {
  tick_at_ns_ = now + kTickNs;
  for (const auto& [incarnation, source] : sources_) source->tick(now);
  for (const auto& [session, target] : targets_) target->tick(now);
  drop_lost();
  tick_removals(now);
}

void Worker::drop_lost() {
  std::erase_if(sources_, [](const auto& entry) { return entry.second->is_lost(); });
  std::erase_if(targets_, [](const auto& entry) { return entry.second->is_lost(); });
}

void Worker::tick_removals(int64_t now) {
  std::erase_if(removals_, [&](const Removal& removal) {
    bool is_clear = true;
    if (removal.mark != 0) {
      Result<uint64_t> done = ground_.gpu->done();
      is_clear = !done.ok() || *done >= removal.mark;
    }
    for (const auto& [session, target] : targets_) {
      if (target->is_clear_of(removal.region)) continue;
      if (now >= removal.fence_at_ns)
        target->fence_rails();
      else
        is_clear = false;
    }
    if (is_clear) ground_.finish(removal.ticket, {});
    return is_clear;
  });
}

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

// Targets are served until our own transfers have ended: who leaves at the same time waits for us.
// Each source says goodbye after a second at the latest.
void Worker::end() {
  const Status why = cancelled("the engine '{}' was closed", ground_.self.name);
  for (const auto& [incarnation, source] : sources_) source->leave(why);
  for (drop_lost(); !sources_.empty();)
    if (!round(now_ns())) std::this_thread::sleep_for(std::chrono::nanoseconds(kMomentNs));
  for (const auto& [session, target] : targets_) target->leave();
  sources_.clear();
  targets_.clear();
  for (const Removal& removal : removals_) ground_.finish(removal.ticket, {});
}

}  // namespace braid::engine
