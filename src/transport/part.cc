#include "transport/part.h"

#include "base/check.h"

namespace braid::transport {

namespace {

class PartLane final : public Lane {
 public:
  PartLane(std::unique_ptr<Lane> lane, const Part& part) : lane_(std::move(lane)), part_(part) {}

  const LaneCaps& caps() const override { return lane_->caps(); }
  const std::string& name() const override { return lane_->name(); }

  PutResult try_put(PeerSet peers, const PieceTag& tag,
                    std::span<const std::byte> payload) override {
    PeerSet inside;
    for (; !peers.empty(); peers = peers.without(peers.first())) {
      BRAID_CHECK(has(peers.first()), "{} does not lead to rank {}", name(), peers.first());
      inside = inside.with(peers.first() - part_.first);
    }
    return lane_->try_put(inside, tag, payload);
  }

  uint32_t available(int src) const override { return has(src) ? lane_->available(in(src)) : 0; }
  Arrival at(int src, uint32_t i) const override { return lane_->at(in(src), i); }
  void release(int src, uint32_t count) override { lane_->release(in(src), count); }

  uint64_t posted(int peer) const override { return has(peer) ? lane_->posted(in(peer)) : 0; }
  uint64_t acked(int peer) const override { return has(peer) ? lane_->acked(in(peer)) : 0; }
  void for_each_unacked(int peer, const std::function<void(const Arrival&)>& visit) const override {
    if (has(peer)) lane_->for_each_unacked(in(peer), visit);
  }

  bool progress() override { return lane_->progress(); }
  int64_t next_event_ns() const override { return lane_->next_event_ns(); }
  Status health(int peer) const override { return has(peer) ? lane_->health(in(peer)) : Status(); }

 private:
  bool has(int rank) const { return part_.contains(rank); }
  int in(int rank) const { return rank - part_.first; }

  const std::unique_ptr<Lane> lane_;
  const Part part_;
};

class PartDoorbell final : public Doorbell {
 public:
  PartDoorbell(Doorbell& whole, const Part& part) : whole_(whole), part_(part) {}

  void ring(int peer) noexcept override { whole_.ring(part_.first + peer); }
  void arm() noexcept override { whole_.arm(); }
  void disarm() noexcept override { whole_.disarm(); }
  void sleep(int64_t until_ns) noexcept override { whole_.sleep(until_ns); }

 private:
  Doorbell& whole_;
  const Part part_;
};

}  // namespace

std::unique_ptr<Lane> part_lane(std::unique_ptr<Lane> lane, const Part& part) {
  return std::make_unique<PartLane>(std::move(lane), part);
}

std::unique_ptr<Doorbell> part_doorbell(Doorbell& whole, const Part& part) {
  return std::make_unique<PartDoorbell>(whole, part);
}

}  // namespace braid::transport
