// RdmaLane: setting up, the Lane interface, closing. post.cc writes, events.cc reacts; the protocol
// is in lane.h.
#include "transport/rdma/lane.h"

#include <sched.h>

#include "base/check.h"
#include "base/log.h"
#include "base/units.h"

namespace braid::transport::rdma {

namespace {
// A lane is polled without pause for so long after something happened: longer than a round trip
// over a local network (tcp on loopback: 20-60 us), shorter than a waste of a core that anyone
// would notice.
constexpr int64_t kBusyNs = 200'000;
// Afterwards this often: someone must poll, for on tcp and shm nothing lands in a target that does
// not; the price is this much latency on the first piece after a pause.
constexpr int64_t kIdlePollNs = 50'000;
// Closing waits this long for the last acks to leave. The peers' deadlines cover what does not.
constexpr int64_t kLingerNs = 100'000'000;
// ... and where acks that come while it closes can end the process, so long for those of the peers. They
// were up to 60 ms late where four ranks had half a core each.
constexpr int64_t kLastAcksNs = 500'000'000;
}  // namespace

RdmaLane::RdmaLane(const RdmaLaneOptions& options, int self, int size)
    : name_(options.name),
      provider_(options.provider),
      self_(self),
      size_(size),
      shape_{options.depth_pieces, options.slot_bytes},
      peers_(size) {
  caps_.max_piece_bytes = options.slot_bytes;
  caps_.depth_pieces = options.depth_pieces;
  caps_.can_lose = true;
}

Result<std::unique_ptr<RdmaLane>> RdmaLane::open(sys::FabricLibrary& library,
                                                 const RdmaLaneOptions& options, int self,
                                                 int size) {
  if (options.depth_pieces < 1 || options.depth_pieces > kMaxDepth || options.slot_bytes < 1)
    return invalid_argument(
        "lane {}: {} slots of {} bytes; 1 to {} slots of at least 1 byte are possible",
        options.name, options.depth_pieces, options.slot_bytes, kMaxDepth);
  if (size > kMaxRanks)
    return unsupported("lane {}: {} ranks, {} is the limit", options.name, size, kMaxRanks);
  std::unique_ptr<RdmaLane> lane(new RdmaLane(options, self, size));
  BRAID_ASSIGN_OR_RETURN(lane->domain_,
                         library.open({options.provider, options.address, lane->shape_.stride()}));
  sys::EndpointRequest request;
  request.num_peers = static_cast<uint32_t>(size);
  // A peer may fill its ring and send an ack, an ask and an answer; we may do the same to it.
  request.queue_depth = static_cast<uint32_t>(
      std::max(1024, 2 * size * (static_cast<int>(options.depth_pieces) + 4)));
  BRAID_ASSIGN_OR_RETURN(lane->endpoint_, lane->domain_->open_endpoint(request));
  BRAID_RETURN_IF_ERROR(lane->allocate());
  return lane;
}

Status RdmaLane::allocate() {
  const size_t slots_bytes = shape_.bytes() * size_, blocks_bytes = sizeof(ControlBlock) * size_;
  BRAID_ASSIGN_OR_RETURN(source_, sys::Pages::map("pages for slots", slots_bytes + blocks_bytes));
  BRAID_ASSIGN_OR_RETURN(control_, sys::Pages::map("pages for control blocks", blocks_bytes));
  const sys::FabricMemory source{source_.data(), source_.bytes(), sys::Access::kLocalSource};
  BRAID_ASSIGN_OR_RETURN(source_region_, domain_->register_memory(source, sys::random_key()));
  for (int r = 0; r < size_; ++r) {
    if (r == self_) continue;
    peers_[r] = std::make_unique<Peer>(Outbox(self_, shape_, source_.data() + shape_.bytes() * r),
                                       Inbox(r, shape_, sys::random_key()));
    BRAID_RETURN_IF_ERROR(at_peer(r).in.open(*domain_));
    auto* block = reinterpret_cast<std::byte*>(&control_in(r));
    const sys::FabricMemory control{block, sizeof(ControlBlock), sys::Access::kRemoteTarget};
    BRAID_ASSIGN_OR_RETURN(at_peer(r).control_region,
                           domain_->register_memory(control, sys::random_key()));
  }
  return {};
}

ControlBlock& RdmaLane::control_in(int peer) const {
  return reinterpret_cast<ControlBlock*>(control_.data())[peer];
}

ControlBlock& RdmaLane::control_out(int peer) const {
  return reinterpret_cast<ControlBlock*>(source_.data() + shape_.bytes() * size_)[peer];
}

RemoteEndpoint RdmaLane::remote_endpoint_for(int peer) const {
  const Peer& p = at_peer(peer);
  return {{p.in.ring_address(), p.in.ring_key()},
          {p.control_region->remote_address(), p.control_region->key()},
          p.in.nonce()};
}

Status RdmaLane::meet(int peer, const std::string& endpoint_name, const RemoteEndpoint& remote) {
  Peer& p = at_peer(peer);
  BRAID_ASSIGN_OR_RETURN(p.fabric_peer, endpoint_->add_peer(endpoint_name));
  p.control = remote.control;
  p.nonce = remote.nonce;
  p.out.point_at(remote.ring, remote.nonce);
  p.is_ack_due = true;  // the greeting is an ack of nothing
  return {};
}

std::string RdmaLane::silent_peers() const {
  std::string out;
  for (int r = 0; r < size_; ++r) {
    if (r == self_) continue;
    const Peer& p = at_peer(r);
    if (!p.was_heard) out += fmt::format(" rank {} was not heard;", r);
    if (p.is_ack_due || p.ack_flies_since_ns != 0)
      out += fmt::format(" rank {} cannot be reached;", r);
    if (!p.why.ok()) out += fmt::format(" ({})", p.why.message());
  }
  return out;
}

// The first write to a peer is EAGAIN until that peer polls too, so all ranks are here at the same
// time.
Status RdmaLane::greet(Deadline deadline) {
  std::string silent = silent_peers();
  while (!silent.empty() && !deadline.passed()) {
    if (!progress()) sched_yield();
    silent = silent_peers();
  }
  if (silent.empty()) return {};
  return timeout("lane {} on {}:{}", name_, domain_->description(), silent);
}

PutResult RdmaLane::try_put(PeerSet peers, const PieceTag& tag,
                            std::span<const std::byte> payload) {
  BRAID_CHECK(payload.size() <= shape_.slot_bytes, "lane {}: piece of {} bytes, {} is the limit",
              name_, payload.size(), shape_.slot_bytes);
  bool is_full = false;
  for (PeerSet rest = peers; !rest.empty(); rest = rest.without(rest.first())) {
    if (at_peer(rest.first()).state != State::kUp) return PutResult::kDown;
    is_full |= !at_peer(rest.first()).out.has_room();
  }
  if (is_full) return PutResult::kFull;
  for (PeerSet rest = peers; !rest.empty(); rest = rest.without(rest.first())) {
    at_peer(rest.first()).out.push(tag, payload);
    post_pieces(rest.first());
  }
  return PutResult::kAccepted;
}

void RdmaLane::release(int src, uint32_t count) {
  Peer& p = at_peer(src);
  p.in.release(count);
  p.is_ack_due |= count > 0;
}

void RdmaLane::for_each_unacked(int peer, const std::function<void(const Arrival&)>& visit) const {
  at_peer(peer).out.for_each_unacked(visit);
}

bool RdmaLane::progress() {
  bool changed = drain();
  for (int r = 0; r < size_; ++r)
    if (r != self_) changed |= post_due(r);
  if (changed) last_active_ns_ = now_ns();
  return changed;
}

int64_t RdmaLane::next_event_ns() const {
  const int64_t now = now_ns();
  return now - last_active_ns_ < kBusyNs ? now : now + kIdlePollNs;
}

Status RdmaLane::health(int peer) const { return peer == self_ ? Status() : at_peer(peer).why; }

// Acks that were released but not told, and writes that the library has not sent, would be lost
// with the endpoint.
void RdmaLane::linger() {
  const bool awaits_acks = domain_->limits().fears_late_arrivals;
  const Deadline deadline = Deadline::after_ns(awaits_acks ? kLastAcksNs : kLingerNs);
  const auto is_owed = [&](const auto& p) {
    return p && p->state == State::kUp && awaits_acks && p->out.acked() < p->out.posted();
  };
  const auto is_owing = [&](const auto& p) { return p && p->state == State::kUp && p->is_ack_due; };
  while (!deadline.passed()) {
    const bool owes = std::any_of(peers_.begin(), peers_.end(), is_owing) ||
                      std::any_of(peers_.begin(), peers_.end(), is_owed);
    const bool has_broken =
        std::any_of(peers_.begin(), peers_.end(), [](const auto& p) { return p && !p->why.ok(); });
    if (!owes && (num_flying_ == 0 || has_broken)) return;
    if (!progress()) sched_yield();
  }
}

RdmaLane::~RdmaLane() {
  if (endpoint_ == nullptr) return;
  linger();
  endpoint_.reset();
  domain_.reset();
}

}  // namespace braid::transport::rdma
