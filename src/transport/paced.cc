// The clocks of a paced lane; what they model and why is told in paced.h.
#include "transport/paced.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace braid::transport {
namespace {

constexpr int64_t kQueueNs = 500'000;            // how far ahead of its clock a sender may put
constexpr int64_t kEgressCreditNs = 20'000'000;  // several time slices of a busy machine
constexpr int64_t kIngressCreditNs = 5'000'000;
// A stamp outside [now - 1 s, now + 0.1 s] is another machine's.
constexpr int64_t kOldestStampNs = 1'000'000'000;
constexpr int64_t kNewestStampNs = 100'000'000;

}  // namespace

int64_t LinkClock::charge(int64_t begin_ns, uint64_t bytes, double rate_gbps) {
  const double exact_ns = rate_gbps > 0 ? static_cast<double>(bytes) / rate_gbps + fraction_ns_ : 0;
  const double whole_ns = std::floor(exact_ns);
  fraction_ns_ = exact_ns - whole_ns;
  free_ns_ = begin_ns + static_cast<int64_t>(whole_ns);
  return free_ns_;
}

PacedLane::PacedLane(std::unique_ptr<Lane> lane, const PaceOptions& options, int num_ranks)
    : inner_(std::move(lane)),
      caps_(inner_->caps()),
      rate_gbps_(options.rate_gbps),
      latency_ns_(options.latency_ns),
      inbound_(static_cast<size_t>(num_ranks)),
      scratch_(caps_.max_piece_bytes) {
  BRAID_CHECK(caps_.max_piece_bytes > kTrailerBytes, "lane {}: pieces of {} bytes cannot be paced",
              inner_->name(), caps_.max_piece_bytes);
  caps_.max_piece_bytes -= kTrailerBytes;
  caps_.is_paced = true;
}

void PacedLane::set_pace(const PaceOptions& options) {
  rate_gbps_.store(options.rate_gbps, std::memory_order_relaxed);
  latency_ns_.store(options.latency_ns, std::memory_order_relaxed);
}

int64_t PacedLane::egress_begin_ns(int64_t now) const {
  return std::max(egress_.free_ns(), is_backlogged_ ? now - kEgressCreditNs : now);
}

std::span<const std::byte> PacedLane::stamped(std::span<const std::byte> payload,
                                              int64_t departs_ns) {
  if (!payload.empty()) std::memcpy(scratch_.data(), payload.data(), payload.size());
  std::memcpy(scratch_.data() + payload.size(), &departs_ns, sizeof departs_ns);
  return {scratch_.data(), payload.size() + sizeof departs_ns};
}

PutResult PacedLane::try_put(PeerSet peers, const PieceTag& tag,
                             std::span<const std::byte> payload) {
  BRAID_CHECK(payload.size() <= caps_.max_piece_bytes, "lane {}: piece of {} bytes exceeds {}",
              name(), payload.size(), caps_.max_piece_bytes);
  if (!is_on()) {
    is_backlogged_ = false;  // a cut link earns no credit
    return switch_.load(std::memory_order_relaxed) == LinkSwitch::kDead ? PutResult::kDown
                                                                        : PutResult::kFull;
  }
  const int64_t now = now_ns();
  const int64_t begin = egress_begin_ns(now);
  if (begin > now + kQueueNs) {
    is_backlogged_ = true;
    // Woken when half of the queue has drained, not at every piece: fewer wakes, and the link never
    // runs dry.
    retry_ns_ = begin - kQueueNs / 2;
    return PutResult::kFull;
  }
  // Towards k peers of a lane without multicast the copies leave one after the other; all carry the
  // last one's start.
  const uint64_t copies = caps_.can_multicast ? 1 : static_cast<uint64_t>(peers.count());
  const uint64_t bytes = payload.size() + kHeaderBytes;
  LinkClock clock = egress_;
  const int64_t last_begin = clock.charge(begin, bytes * (copies - 1), rate_gbps());
  const PutResult result = inner_->try_put(peers, tag, stamped(payload, last_begin));
  is_backlogged_ = result == PutResult::kFull;
  if (result != PutResult::kAccepted) return result;
  clock.charge(last_begin, bytes, rate_gbps());
  egress_ = clock;
  return result;
}

namespace {

// A piece that is too short for its stamp was not put by a paced lane; it counts as empty, and as
// arriving now.
std::span<const std::byte> without_stamp(std::span<const std::byte> stamped_payload) {
  const size_t stamp_bytes = std::min(stamped_payload.size(), sizeof(int64_t));
  return stamped_payload.first(stamped_payload.size() - stamp_bytes);
}

}  // namespace

Arrival PacedLane::at(int src, uint32_t i) const {
  const Arrival arrival = inner_->at(src, inbound(src).num_held + i);
  return {arrival.tag, without_stamp(arrival.payload)};
}

void PacedLane::for_each_unacked(int peer, const std::function<void(const Arrival&)>& visit) const {
  inner_->for_each_unacked(
      peer, [&visit](const Arrival& sent) { visit({sent.tag, without_stamp(sent.payload)}); });
}

void PacedLane::release(int src, uint32_t count) {
  Inbound& in = inbound(src);
  BRAID_CHECK(count <= in.num_shown, "lane {}: release of {} pieces, {} are there", name(), count,
              in.num_shown);
  in.num_shown -= count;
  in.due_ns.erase(in.due_ns.begin(), in.due_ns.begin() + count);
  if (is_on() && in.num_held == 0) {
    inner_->release(src, count);
  } else {
    in.num_held += count;  // an ack does not cross a cut link either; progress() gives it back
  }
}

bool PacedLane::progress() {
  if (!is_on()) return false;
  const bool gave_back = give_back_held();
  const bool moved = inner_->progress();
  const int64_t now = now_ns();
  charge_arrivals(now);
  const bool shown = show_due(now);
  const bool can_retry = retry_ns_ <= now;
  if (can_retry)
    retry_ns_ = INT64_MAX;  // said once: whoever was refused may have put its piece elsewhere
  return gave_back || moved || shown || can_retry;
}

bool PacedLane::give_back_held() {
  bool any = false;
  for (size_t src = 0; src < inbound_.size(); ++src) {
    const uint32_t held = std::exchange(inbound_[src].num_held, 0);
    if (held == 0) continue;
    inner_->release(static_cast<int>(src), held);
    any = true;
  }
  return any;
}

// Charged in the order in which they arrived on the link, whichever source they came from.
void PacedLane::charge_arrivals(int64_t now) {
  for (int src = oldest_uncharged(now); src >= 0; src = oldest_uncharged(now)) {
    const auto index = static_cast<uint32_t>(inbound(src).due_ns.size());
    const uint64_t bytes = without_stamp(inner_->at(src, index).payload).size() + kHeaderBytes;
    const int64_t arrives = arrival_ns(src, now);
    const bool is_fresh = arrives - ingress_.free_ns() > kIngressCreditNs;
    LinkClock alone;
    const int64_t passed =
        ingress_.charge(is_fresh ? arrives : ingress_.free_ns(), bytes, rate_gbps());
    inbound(src).due_ns.push_back(std::max(passed, alone.charge(arrives, bytes, rate_gbps())));
  }
}

int PacedLane::oldest_uncharged(int64_t now) const {
  int oldest = -1;
  int64_t oldest_ns = INT64_MAX;
  for (size_t i = 0; i < inbound_.size(); ++i) {
    const int src = static_cast<int>(i);
    if (inbound_[i].due_ns.size() >= inner_->available(src)) continue;
    const int64_t arrives = arrival_ns(src, now);
    if (arrives < oldest_ns) oldest = src, oldest_ns = arrives;
  }
  return oldest;
}

/// When the oldest uncharged piece of `src` began to arrive.
int64_t PacedLane::arrival_ns(int src, int64_t now) const {
  const auto payload = inner_->at(src, static_cast<uint32_t>(inbound(src).due_ns.size())).payload;
  int64_t departed = now;
  if (payload.size() >= sizeof departed)
    std::memcpy(&departed, payload.data() + payload.size() - sizeof departed, sizeof departed);
  const bool is_plausible = departed >= now - kOldestStampNs && departed <= now + kNewestStampNs;
  return (is_plausible ? departed : now) + latency_ns_.load(std::memory_order_relaxed);
}

bool PacedLane::show_due(int64_t now) {
  bool any = false;
  for (Inbound& in : inbound_)
    while (in.num_shown < in.due_ns.size() && in.due_ns[in.num_shown] <= now)
      ++in.num_shown, any = true;
  return any;
}

int64_t PacedLane::next_event_ns() const {
  if (!is_on()) return INT64_MAX;
  int64_t next = std::min(inner_->next_event_ns(), retry_ns_);
  for (const Inbound& in : inbound_)
    if (in.num_shown < in.due_ns.size()) next = std::min(next, in.due_ns[in.num_shown]);
  return next;
}

Status PacedLane::health(int peer) const {
  if (switch_.load(std::memory_order_relaxed) == LinkSwitch::kDead)
    return unavailable("lane {} to rank {}: link was switched off", name(), peer);
  return inner_->health(peer);
}

std::unique_ptr<Lane> paced(std::unique_ptr<Lane> lane, const PaceOptions& options, int num_ranks) {
  return std::make_unique<PacedLane>(std::move(lane), options, num_ranks);
}

}  // namespace braid::transport
