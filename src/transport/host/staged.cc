// Lane staged: a bounce through host memory, the CPU twin of the PCIe path. Payload lies in a pool
// of rooms in the WRITER's segment and is written once, however many peers it is for; what goes to
// each peer is one header line in its ring. A room returns to the pool when the last peer that it
// was for has released it, in whatever order that happens, so a peer that never reads holds back
// its own pieces and nobody else's.
//
// The pool has depth rooms per peer: a put is refused only because of the peers it names. Free
// rooms are taken from the top of a stack, last one back first, so that a pool that is mostly idle
// stays in a few cached rooms.
#include <cstring>

#include "base/check.h"
#include "transport/host/host_lane.h"

namespace braid::transport {
namespace {

HostLayout staged_layout(const HostLaneOptions& options, int num_ranks) {
  const auto num_peers = static_cast<uint32_t>(num_ranks > 1 ? num_ranks - 1 : 1);
  return {.num_ranks = num_ranks,
          .ring = {options.depth_pieces},
          .rooms = {options.depth_pieces * num_peers, options.slot_bytes},
          .num_areas = 1};
}

LaneCaps staged_caps(const HostLaneOptions& options) {
  LaneCaps caps;
  caps.max_piece_bytes = options.slot_bytes;
  caps.depth_pieces = options.depth_pieces;
  caps.can_multicast = true;
  caps.can_ring = true;
  return caps;
}

class StagedLane final : public HostLane {
 public:
  StagedLane(const HostLaneOptions& options, Doorbell& doorbell, Segments segments, int rank)
      : HostLane("staged", staged_caps(options), doorbell, std::move(segments), rank) {
    const HostLayout layout = staged_layout(options, size());
    open_rings(layout, [this, &layout](int src, int) {
      return Rooms{layout.rooms, this->segments().of(src) + layout.rooms_offset(0)};
    });
    pool_ = {layout.rooms, this->segments().of(rank) + layout.rooms_offset(0)};
    readers_.resize(layout.rooms.num_rooms);
    for (uint32_t room = layout.rooms.num_rooms; room > 0; --room) free_.push_back(room - 1);
  }

  PutResult try_put(PeerSet peers, const PieceTag& tag,
                    std::span<const std::byte> payload) override {
    const PutResult result = can_put(peers, payload.size());
    if (result != PutResult::kAccepted) return result;
    const uint32_t room = take_room(peers);
    if (!payload.empty()) std::memcpy(pool_.at(room), payload.data(), payload.size());
    for (PeerSet left = peers; !left.empty(); left = left.without(left.first()))
      publish(left.first(), tag, payload.size(), room);
    return PutResult::kAccepted;
  }

 private:
  uint32_t take_room(PeerSet peers) {
    BRAID_CHECK(!free_.empty(), "lane staged: no free room although all of peers {:#x} have a slot",
                peers.bits());
    const uint32_t room = free_.back();
    free_.pop_back();
    readers_[room] = peers;
    return room;
  }
  void freed(int peer, uint32_t room) override {
    readers_[room] = readers_[room].without(peer);
    if (readers_[room].empty()) free_.push_back(room);
  }

  Rooms pool_;
  std::vector<PeerSet> readers_;  // by room: who has not released it yet
  std::vector<uint32_t> free_;
};

}  // namespace

Result<std::unique_ptr<Lane>> connect_staged(group::Group& group, Doorbell& doorbell,
                                             const HostLaneOptions& options, Deadline deadline) {
  BRAID_ASSIGN_OR_RETURN(
      Segments segments,
      share_segments(
          group,
          segment_request("lane staged", options, staged_layout(options, group.size()).bytes()),
          deadline));
  return std::unique_ptr<Lane>(
      std::make_unique<StagedLane>(options, doorbell, std::move(segments), group.rank()));
}

}  // namespace braid::transport
