// HostLane: what the lanes over shared memory have in common. Every rank owns one segment; the ring
// from rank s to rank r lies in r's segment, so that the receiver polls its own memory. The lanes
// differ only in where payload lies: shm.cc puts it beside the ring, staged.cc once into a pool of
// the writer's.
//
// Threads: as Lane. Ordering: as told in ring.h.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "group/group.h"
#include "transport/connect.h"
#include "transport/host/doorbell.h"
#include "transport/host/ring.h"
#include "transport/host/segments.h"
#include "transport/lane.h"

namespace braid::transport {

/// Where things lie in a rank's segment: its inbound rings, in order of their source, then rooms.
struct HostLayout {
  int num_ranks = 0;
  RingLayout ring;
  RoomLayout rooms;        // of one ring (shm) or of one rank's pool (staged)
  uint32_t num_areas = 0;  // how many times `rooms`

  constexpr size_t ring_offset(int src) const { return static_cast<size_t>(src) * ring.bytes(); }
  constexpr size_t rooms_offset(uint32_t area) const {
    return ring_offset(num_ranks) + area * rooms.bytes();
  }
  constexpr size_t bytes() const { return rooms_offset(num_areas); }
};

class HostLane : public Lane {
 public:
  const LaneCaps& caps() const override { return caps_; }
  const std::string& name() const override { return name_; }

  uint32_t available(int src) const override { return src == rank_ ? 0 : reader(src).available(); }
  Arrival at(int src, uint32_t i) const override { return reader(src).at(i); }
  void release(int src, uint32_t count) override;

  uint64_t posted(int peer) const override { return peer == rank_ ? 0 : writer(peer).posted(); }
  uint64_t acked(int peer) const override { return peer == rank_ ? 0 : writer(peer).acked(); }
  void for_each_unacked(int peer, const std::function<void(const Arrival&)>& visit) const override;

  bool progress() override;
  int64_t next_event_ns() const override { return INT64_MAX; }
  Status health(int peer) const override { return health_[static_cast<size_t>(peer)]; }

 protected:
  /// The rooms that pieces from `src` to `dst` lie in.
  using RoomsOf = std::function<Rooms(int src, int dst)>;
  HostLane(std::string name, LaneCaps caps, Doorbell& doorbell, Segments segments, int rank);
  /// Builds both ends of all rings.
  void open_rings(const HostLayout& layout, const RoomsOf& rooms_of);

  Segments& segments() { return segments_; }
  int size() const { return static_cast<int>(health_.size()); }
  // NOLINTBEGIN(bugprone-unchecked-optional-access): there, once open_rings() has run, for all
  // peers
  RingWriter& writer(int peer) { return *out_[static_cast<size_t>(peer)]; }
  const RingWriter& writer(int peer) const { return *out_[static_cast<size_t>(peer)]; }
  RingReader& reader(int src) { return *in_[static_cast<size_t>(src)]; }
  const RingReader& reader(int src) const { return *in_[static_cast<size_t>(src)]; }
  // NOLINTEND(bugprone-unchecked-optional-access)
  /// kAccepted when every one of `peers` is healthy and has a free slot.
  PutResult can_put(PeerSet peers, size_t bytes) const;
  /// Publishes a payload that lies in `room` and wakes the peer.
  void publish(int peer, const PieceTag& tag, size_t bytes, uint32_t room);
  /// Called when `peer` no longer needs `room`.
  virtual void freed(int peer, uint32_t room) = 0;

 private:
  bool progress_peer(int peer);
  void fail(int peer, const Status& why);

  const std::string name_;
  const LaneCaps caps_;
  Doorbell& doorbell_;
  Segments segments_;
  const int rank_;
  std::vector<std::optional<RingWriter>> out_;  // by peer; empty at this rank
  std::vector<std::optional<RingReader>> in_;
  std::vector<Status> health_;
};

/// What `lane` asks of share_segments; refused when an option is outside what the layouts can hold.
SegmentRequest segment_request(std::string lane, const HostLaneOptions& options, size_t bytes);

}  // namespace braid::transport
