#include "engine/worker.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "sys/host/thread.h"

namespace braid::engine {
namespace {
constexpr int64_t kRemovalNs = 1'000'000'000;
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

// --- one round ---

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
