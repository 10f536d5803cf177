// The common part of the shared memory lanes; see host_lane.h.
#include "transport/host/host_lane.h"

#include "base/check.h"

namespace braid::transport {
namespace {

constexpr uint32_t kMaxSlotBytes = 64 << 20;  // a piece is copied in one go: larger ones only hurt
constexpr uint32_t kMaxDepth = 4096;

Status check_options(const HostLaneOptions& options, const std::string& lane) {
  if (options.slot_bytes == 0 || options.slot_bytes > kMaxSlotBytes)
    return invalid_argument("{}: slot of {} bytes, expected 1 to {}", lane, options.slot_bytes,
                            kMaxSlotBytes);
  if (options.depth_pieces == 0 || options.depth_pieces > kMaxDepth)
    return invalid_argument("{}: depth of {} pieces, expected 1 to {}", lane, options.depth_pieces,
                            kMaxDepth);
  return {};
}

}  // namespace

HostLane::HostLane(std::string name, LaneCaps caps, Doorbell& doorbell, Segments segments, int rank)
    : name_(std::move(name)),
      caps_(caps),
      doorbell_(doorbell),
      segments_(std::move(segments)),
      rank_(rank),
      out_(static_cast<size_t>(segments_.size())),
      in_(static_cast<size_t>(segments_.size())),
      health_(static_cast<size_t>(segments_.size())) {}

void HostLane::open_rings(const HostLayout& layout, const RoomsOf& rooms_of) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    const auto index = static_cast<size_t>(peer);
    out_[index].emplace(segments_.of(peer) + layout.ring_offset(rank_), layout.ring,
                        rooms_of(rank_, peer));
    in_[index].emplace(segments_.of(rank_) + layout.ring_offset(peer), layout.ring,
                       rooms_of(peer, rank_));
  }
}

PutResult HostLane::can_put(PeerSet peers, size_t bytes) const {
  BRAID_CHECK(bytes <= caps_.max_piece_bytes, "lane {}: piece of {} bytes exceeds {}", name_, bytes,
              caps_.max_piece_bytes);
  BRAID_CHECK(!peers.empty() && !peers.contains(rank_), "lane {}: put from rank {} to peers {:#x}",
              name_, rank_, peers.bits());
  PutResult result = PutResult::kAccepted;
  for (PeerSet left = peers; !left.empty(); left = left.without(left.first())) {
    if (!health_[static_cast<size_t>(left.first())].ok()) return PutResult::kDown;
    if (writer(left.first()).is_full()) result = PutResult::kFull;
  }
  return result;
}

void HostLane::publish(int peer, const PieceTag& tag, size_t bytes, uint32_t room) {
  writer(peer).publish(tag, static_cast<uint32_t>(bytes), room);
  doorbell_.ring(peer);
}

void HostLane::release(int src, uint32_t count) {
  reader(src).release(count);
  doorbell_.ring(src);
}

void HostLane::for_each_unacked(int peer, const std::function<void(const Arrival&)>& visit) const {
  const RingWriter& ring = writer(peer);
  for (uint64_t i = 0; i < ring.posted() - ring.acked(); ++i) visit(ring.unacked(i));
}

bool HostLane::progress() {
  bool changed = false;
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank_ && health_[static_cast<size_t>(peer)].ok()) changed |= progress_peer(peer);
  return changed;
}

bool HostLane::progress_peer(int peer) {
  RingWriter& out = writer(peer);
  RingReader& in = reader(peer);
  const uint64_t acked = out.acked();
  const uint32_t available = in.available();
  Status status = out.poll_acks([this, peer](uint32_t room) { freed(peer, room); });
  if (status.ok()) status = in.poll();
  if (!status.ok()) fail(peer, status);
  return out.acked() != acked || in.available() != available || !status.ok();
}

void HostLane::fail(int peer, const Status& why) {
  health_[static_cast<size_t>(peer)] =
      why.with_context(fmt::format("lane {} to rank {}", name_, peer));
}

SegmentRequest segment_request(std::string lane, const HostLaneOptions& options, size_t bytes) {
  SegmentRequest request;
  request.refusal = check_options(options, lane);
  request.topic = std::move(lane);
  request.bytes = bytes;
  request.shape = fmt::format("{}x{}", options.depth_pieces, options.slot_bytes);
  request.host_id = options.host_id;
  request.memory = options.memory;
  return request;
}

}  // namespace braid::transport
