#include "engine/worker.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>

#include "base/log.h"
#include "engine/spin.h"

namespace braid::engine {
namespace {
constexpr size_t kMostGuests = 64;
constexpr int64_t kGuestNs = 5'000'000'000;
constexpr int64_t kTickNs = 5'000'000;
constexpr int kSleepMs = 50;  // beats and leases are looked at so often
constexpr int64_t kRemovalNs = 1'000'000'000;
}  // namespace

Worker::Worker(Ground& ground, std::vector<sys::Fd> listeners, sys::Wake wake)
    : ground_(ground),
      listeners_(std::move(listeners)),
      wake_(std::move(wake)),
      thread_([this] { serve(); }) {}

void Worker::close() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  wake_.signal();
  if (thread_.joinable()) thread_.join();
}

bool Worker::post(Call call) {
  {
    const std::lock_guard lock(mutex_);
    if (is_ending_) return false;
    calls_.push_back(std::move(call));
  }
  if (is_asleep_) wake_.signal();
  return true;
}

void Worker::serve() {
  if (ground_.gpu != nullptr) {
    if (const Status used = ground_.gpu->use(); !used.ok())
      log::error("engine", "'{}': {}", ground_.self.name, used.message());
  }
  while (true) {
    const int64_t now = now_ns();
    bool moved = run_calls();
    moved |= progress(now);
    moved |= converse(now);
    if (moved && !removals_.empty()) tick_removals(now);
    if (now >= tick_at_ns_) tick(now);
    {
      const std::lock_guard lock(mutex_);
      if (is_ending_ && calls_.empty()) break;
    }
    rest(moved, now);
  }
  end();
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

// Every socket is tried, without asking first which one is ready: a few calls that find nothing
// cost less than a list made anew. While rails are busy, an eighth of the time.
bool Worker::converse(int64_t now) {
  constexpr int64_t kTimesAsLong = 7;
  constexpr int64_t kMostNs = 25'000;
  if (now < converse_at_ns_ && must_poll()) return false;
  bool moved = accept(now);
  moved |= greet(now);
  for (const auto& [incarnation, source] : sources_) moved |= source->converse(now);
  for (const auto& [session, target] : targets_) moved |= target->converse();
  const int64_t then = now_ns();
  converse_at_ns_ = then + std::min(kMostNs, kTimesAsLong * (then - now));
  return moved;
}

// Who connects has time.
bool Worker::accept(int64_t now) {
  constexpr int64_t kEveryNs = 100'000;
  if (now < accept_at_ns_) return false;
  accept_at_ns_ = now + kEveryNs;
  bool moved = false;
  for (const sys::Fd& listener : listeners_) {
    Result<sys::Fd> fd = sys::accept_on(listener.get(), Deadline::at_ns(0));
    if (!fd.ok()) continue;
    if (guests_.size() >= kMostGuests) guests_.pop_front();
    guests_.push_back({ControlSocket(std::move(fd).value()),
                       TargetHandshake(ground_.secret, ground_.self.incarnation),
                       now_ns() + kGuestNs});
    moved = true;
  }
  return moved;
}

bool Worker::greet(int64_t now) {
  return guests_.remove_if([&](Guest& guest) { return !greet(guest, now); }) != 0;
}

bool Worker::greet(Guest& guest, int64_t now) {
  const Status filled = guest.socket.fill();
  while (!guest.handshake.is_done()) {
    Result<std::optional<Frame>> frame = guest.socket.next();
    if (frame.ok() && !frame->has_value()) break;
    const Status heard =
        frame.ok()
            ? guest.handshake.on_frame(guest.socket, **frame,
                                       [this](const Introduction& asked) { return recall(asked); })
            : frame.status();
    if (!heard.ok()) {
      (void)guest.socket.flush();  // the answer that says why
      ++ground_.stats.handshakes_refused;
      log::info("engine", "'{}': refused a connection: {}", ground_.self.name, heard.message());
      return false;
    }
  }
  if (guest.handshake.is_done()) {
    const Introduction& told = guest.handshake.introduction();
    targets_[told.session]->attach(std::move(guest.socket), told.peer_received);
    return false;
  }
  return filled.ok() && guest.socket.flush().ok() && now < guest.leaves_at_ns;
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
  targets_.emplace(asked.session, std::make_unique<Target>(ground_, asked.peer));
  return 0;
}

// --- calls ---

Source& Worker::source_for(const Address& target) {
  std::unique_ptr<Source>& source = sources_[target.incarnation];
  if (source == nullptr || source->is_lost()) source = std::make_unique<Source>(ground_, target);
  return *source;
}

Source* Worker::find_source(const Incarnation& target) {
  const auto found = sources_.find(target);
  return found == sources_.end() ? nullptr : found->second.get();
}

void Worker::cancel(uint64_t transfer, const Status& why) {
  for (const auto& [incarnation, source] : sources_) source->cancel(transfer, why);
}

void Worker::disconnect(const Incarnation& peer) {
  const auto found = sources_.find(peer);
  if (found == sources_.end()) return;
  found->second->leave(cancelled("disconnected from '{}'", found->second->target().name));
  sources_.erase(found);
}

void Worker::remove_region(uint64_t region, const TicketPtr& ticket) {
  for (const auto& [session, target] : targets_) target->tell_gone(region);
  removals_.push_back({region, ticket, now_ns() + kRemovalNs,
                       ground_.gpu != nullptr ? ground_.gpu->last_mark() : 0});
  tick_removals(now_ns());
}

std::vector<std::string> Worker::describe() const {
  std::vector<std::string> out;
  for (const auto& [incarnation, source] : sources_) out.push_back(source->describe());
  for (const auto& [session, target] : targets_) out.push_back(target->describe());
  return out;
}

// --- time ---

void Worker::tick(int64_t now) {
  tick_at_ns_ = now + kTickNs;
  for (const auto& [incarnation, source] : sources_) source->tick(now);
  for (const auto& [session, target] : targets_) target->tick(now);
  std::erase_if(sources_, [](const auto& entry) { return entry.second->is_lost(); });
  std::erase_if(targets_, [](const auto& entry) { return entry.second->is_lost(); });
  tick_removals(now);
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

void Worker::rest(bool moved, int64_t now) {
  if (moved) {
    moved_at_ns_ = now;
    return;
  }
  if (now - moved_at_ns_ < short_spin_ns()) return;
  if (must_poll() || is_hot(now)) {
    // Peers may share the core, and it is they who have something to do. Not after every look: on
    // a machine with other work each yield may last for a slice of all of it.
    constexpr int64_t kYieldEveryNs = 100'000;
    if (now - yielded_at_ns_ < kYieldEveryNs) return;
    ::sched_yield();
    yielded_at_ns_ = now_ns();
    return;
  }
  sleep();
}

// Whoever posts a call signals if we say that we sleep; we say so before we look for calls the last
// time.
void Worker::sleep() {
  is_asleep_ = true;
  {
    const std::lock_guard lock(mutex_);
    if (!calls_.empty() || is_ending_) {
      is_asleep_ = false;
      return;
    }
  }
  std::vector<pollfd> fds = {{wake_.fd(), POLLIN, 0}};
  for (const sys::Fd& listener : listeners_) fds.push_back({listener.get(), POLLIN, 0});
  for (const Guest& guest : guests_) fds.push_back({guest.socket.fd(), POLLIN, 0});
  bool is_pressed = false;  // somebody waits for a deadline that is finer than our sleep
  for (const auto& [incarnation, source] : sources_) {
    if (source->fd() >= 0) fds.push_back({source->fd(), source->events(), 0});
    is_pressed |= !source->is_idle();
  }
  for (const auto& [session, target] : targets_)
    if (target->fd() >= 0) fds.push_back({target->fd(), target->events(), 0});
  const int limit_ms =
      is_pressed || !removals_.empty() ? static_cast<int>(kTickNs / 1'000'000) : kSleepMs;
  (void)::poll(fds.data(), fds.size(), limit_ms);
  is_asleep_ = false;
  wake_.drain();
  accept_at_ns_ = 0;
  moved_at_ns_ = now_ns();  // whatever woke us, more of it may follow at once
}

void Worker::end() {
  const Status why = cancelled("the engine '{}' was closed", ground_.self.name);
  for (const auto& [incarnation, source] : sources_) source->leave(why);
  for (const auto& [session, target] : targets_) target->leave();
  sources_.clear();
  targets_.clear();
  for (const Removal& removal : removals_) ground_.finish(removal.ticket, {});
}

}  // namespace braid::engine
