// Lane shm: direct puts. The ring and the rooms of every pair lie in the receiver's segment, so a
// put is one copy into the peer's memory and the receiver reads it in place: the CPU twin of a
// store over NVLink. A piece for k peers is k copies. See host_lane.h for what it shares with
// staged, ring.h for the protocol.
#include <cstring>

#include "transport/host/host_lane.h"

namespace braid::transport {
namespace {

HostLayout shm_layout(const HostLaneOptions& options, int num_ranks) {
  return {.num_ranks = num_ranks,
          .ring = {options.depth_pieces},
          .rooms = {options.depth_pieces, options.slot_bytes},
          .num_areas = static_cast<uint32_t>(num_ranks)};
}

LaneCaps shm_caps(const HostLaneOptions& options) {
  LaneCaps caps;
  caps.max_piece_bytes = options.slot_bytes;
  caps.depth_pieces = options.depth_pieces;
  caps.can_ring = true;
  return caps;
}

class ShmLane final : public HostLane {
 public:
  ShmLane(const HostLaneOptions& options, Doorbell& doorbell, Segments segments, int rank)
      : HostLane("shm", shm_caps(options), doorbell, std::move(segments), rank) {
    const HostLayout layout = shm_layout(options, size());
    open_rings(layout, [this, &layout](int src, int dst) {
      return Rooms{layout.rooms,
                   this->segments().of(dst) + layout.rooms_offset(static_cast<uint32_t>(src))};
    });
  }

  PutResult try_put(PeerSet peers, const PieceTag& tag,
                    std::span<const std::byte> payload) override {
    const PutResult result = can_put(peers, payload.size());
    if (result != PutResult::kAccepted) return result;
    for (PeerSet left = peers; !left.empty(); left = left.without(left.first()))
      put_one(left.first(), tag, payload);
    return PutResult::kAccepted;
  }

 private:
  // A ring has as many rooms as slots, so a free slot's own room is free too.
  void put_one(int peer, const PieceTag& tag, std::span<const std::byte> payload) {
    const RingWriter& ring = writer(peer);
    const uint32_t room = ring.next_slot();
    if (!payload.empty()) std::memcpy(ring.rooms().at(room), payload.data(), payload.size());
    publish(peer, tag, payload.size(), room);
  }
  void freed(int, uint32_t) override {}
};

}  // namespace

Result<std::unique_ptr<Lane>> connect_shm(group::Group& group, Doorbell& doorbell,
                                          const HostLaneOptions& options, Deadline deadline) {
  BRAID_ASSIGN_OR_RETURN(
      Segments segments,
      share_segments(
          group, segment_request("lane shm", options, shm_layout(options, group.size()).bytes()),
          deadline));
  return std::unique_ptr<Lane>(
      std::make_unique<ShmLane>(options, doorbell, std::move(segments), group.rank()));
}

}  // namespace braid::transport
