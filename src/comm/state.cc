#include "comm/state.h"

#include <algorithm>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "plan/decide.h"
#include "sys/host/api.h"

namespace braid::comm {

namespace {

plan::DecideOptions decide_options(const Comm::State& state) {
  plan::DecideOptions options;
  for (const LinkState& link : state.links)
    options.max_piece_bytes = std::min(options.max_piece_bytes, link.lane->caps().max_piece_bytes);
  return options;
}

plan::Plan decide_anew(const Comm::State& state, const plan::Request& request) {
  return plan::decide(request, state.link_facts, state.table, decide_options(state));
}

}  // namespace

plan::Plan Comm::State::plan_now(const plan::Request& request) const {
  if (links.empty()) return {request, {}, 0, 0, "one rank alone: nothing moves between ranks"};
  // A job repeats few sizes; one that does not must not grow without end.
  constexpr size_t kMostPlans = 1024;
  const std::pair<plan::Op, uint64_t> key(request.op, request.bytes);
  auto found = plan_cache.find(key);
  if (found == plan_cache.end()) {
    if (plan_cache.size() >= kMostPlans) plan_cache.clear();
    found = plan_cache.emplace(key, decide_anew(*this, request)).first;
  }
  plan::Plan plan = found->second;
  if (!forced.empty()) {
    plan.shares = without_links(forced, book.up_mask());
    plan.why = "shares are forced";
    plan.predicted_ns = 0;
    return plan;
  }
  plan::Shares shares = book.effective(request.op, plan::size_class(request.bytes), plan.shares);
  if (shares != plan.shares) {
    plan.shares = std::move(shares);
    plan.why += "; moved since by the run-time balancer";
  }
  return plan;
}

plan::Shares Comm::State::node_shares(const plan::Request& request) const {
  if (node_link_facts.empty()) return {};
  const plan::Plan inside = plan::decide({request.op, request.bytes, nodes.per_node},
                                         node_link_facts, {}, decide_options(*this));
  plan::Shares shares(link_facts.size(), 0);
  shares.insert(shares.end(), inside.shares.begin(), inside.shares.end());
  return shares;
}

uint64_t Comm::State::reach_mask(transport::PeerSet peers) const {
  uint64_t mask = 0;
  for (size_t i = 0; i < links.size(); ++i)
    if ((peers.bits() & ~links[i].reach.bits()) == 0) mask |= uint64_t{1} << i;
  return mask;
}

void Comm::State::plans_changed() {
  plan_cache.clear();
  book.clear_decisions();
  balance.reset();
}

uint64_t Comm::State::local_up_mask() const {
  uint64_t mask = ~uint64_t{0};
  for (size_t i = 0; i < links.size(); ++i)
    if (links[i].is_down) mask &= ~(uint64_t{1} << i);
  return mask;
}

bool Comm::State::is_last_to_somebody(int link) const {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() || !links[static_cast<size_t>(link)].reach.contains(peer)) continue;
    const uint64_t leading = reach_mask(transport::PeerSet::only(peer)) & local_up_mask();
    if ((leading & ~(uint64_t{1} << link)) == 0) return true;
  }
  return false;
}

void Comm::State::note_event(std::string line) {
  constexpr size_t kKept = 256;
  log::info("comm", "{}", line);
  const std::lock_guard lock(health_mutex);
  events.push_back(std::move(line));
  if (events.size() > kKept) events.erase(events.begin());
}

void Comm::State::mark_down(int link, const std::string& why) {
  LinkState& l = links[static_cast<size_t>(link)];
  if (l.is_down) return;
  {
    const std::lock_guard lock(health_mutex);
    l.is_down = true;
    l.down_since_ns = now_ns();
    ++l.down_count;
    l.why = why;
  }
  if (observer) observer->journal().note_link(static_cast<size_t>(link), false);
  log::warn("comm", "link {} is not used any more: {}", l.facts.name, why);
  note_event(fmt::format("call {}: link {} lost: {}", epoch, l.facts.name, why));
}

namespace {

// Puts a probe to every peer that has none yet; true when all have one and acknowledged everything.
bool has_proved_itself(LinkState& link, int rank, int size) {
  transport::Lane& lane = *link.lane;
  bool is_clean = true;
  for (int p = 0; p < size; ++p) {
    if (p == rank || !link.reach.contains(p)) continue;
    const auto peer = transport::PeerSet::only(p);
    if (lane.health(p).ok() && !link.probed.contains(p) &&
        lane.try_put(peer, kProbeTag, {}) == transport::PutResult::kAccepted)
      link.probed = link.probed.with(p);
    is_clean = is_clean && link.probed.contains(p) && lane.health(p).ok() &&
               lane.acked(p) == lane.posted(p);
  }
  return is_clean;
}

}  // namespace

// A link that is down proves itself with a probe to every peer: when that, and everything it was accused
// of holding, is acknowledged, it is used again. Silence proves nothing, since a link that takes no
// pieces has none outstanding.
void Comm::State::probe_down_links() {
  for (LinkState& l : links) {
    if (!l.is_down || !has_proved_itself(l, rank(), size())) continue;
    {
      const std::lock_guard lock(health_mutex);
      l.is_down = false;
      l.probed = {};
    }
    if (observer) observer->journal().note_link(static_cast<size_t>(&l - links.data()), true);
    note_event(fmt::format("call {}: link {} is back after {} ms", epoch, l.facts.name,
                           (now_ns() - l.down_since_ns) / 1'000'000));
  }
}

// Between calls every arrived piece of an epoch that is over is a late copy, and so is one of a
// message that is over. Its epoch is word 0 of the tag (coll/wire.h).
bool Comm::State::idle_progress() {
  bool any = false;
  for (LinkState& link : links) {
    transport::Lane& lane = *link.lane;
    any |= lane.progress();
    for (int source = 0; source < size(); ++source) {
      if (source == rank()) continue;
      const auto is_late = [&](const transport::PieceTag& tag) {
        return tag.words[0] <= epoch ||
               (tag.words[0] == epoch + 1 && is_over(messages, source, tag));
      };
      while (lane.available(source) > 0 && is_late(lane.at(source, 0).tag)) {
        lane.release(source, 1);
        any = true;
      }
    }
    if (any) any |= lane.progress();  // what was released is to be acknowledged now
  }
  probe_down_links();
  return any;
}

bool Comm::State::is_forked() const { return process_id != sys::process_id(); }

Status Comm::State::check_process() const {
  if (!is_forked()) return {};
  return invalid_argument(
      "comm of rank {} was made by process {} and cannot be used in its fork {}", rank(),
      process_id, sys::process_id());
}

namespace {

Status busy(const Comm::State& state) {
  return invalid_argument(
      "comm of rank {}: another thread is in a call on it; a comm takes one thread at a time",
      state.rank());
}

}  // namespace

// It asks and does not say so: a thread that only asks makes no other one's call fail.
Result<std::unique_lock<std::mutex>> Comm::State::lock_between_calls() {
  BRAID_RETURN_IF_ERROR(check_process());
  std::unique_lock lock(mutex, std::try_to_lock);
  while (!lock.owns_lock()) {
    if (in_call) return busy(*this);
    std::this_thread::yield();
    (void)lock.try_lock();
  }
  return lock;
}

CallGuard::CallGuard(Comm& comm) : state_(comm.state()) {
  status_ = state_.check_process();
  if (!status_.ok()) return;
  if (state_.in_call.exchange(true, std::memory_order_acquire)) {
    status_ = busy(state_);
    return;
  }
  owns_ = true;
  lock_ = std::unique_lock(state_.mutex);
  if (state_.is_closed)
    status_ = invalid_argument("comm of rank {} is closed", state_.rank());
  else if (!state_.fatal.ok())
    status_ = state_.fatal.with_context("an earlier call failed");
  else if (state_.group && state_.group->broken())
    status_ = state_.fatal = state_.group->fate();
}

namespace {

// A call that failed has no epoch in its report, and neither have messages.
void publish_report(Comm::State& state) {
  if (state.report.epoch == state.last_report.epoch) return;
  const std::lock_guard lock(state.health_mutex);
  state.last_report = state.report;
}

}  // namespace

CallGuard::~CallGuard() {
  if (!owns_) return;
  publish_report(state_);
  for (std::string& line : state_.balance.take_log())
    state_.note_event(fmt::format("call {}: {}", state_.epoch, line));
  state_.last_call_end_ns = now_ns();
  lock_.unlock();
  state_.in_call.store(false, std::memory_order_release);
}

}  // namespace braid::comm
