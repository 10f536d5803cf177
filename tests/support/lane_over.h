// A lane that hands everything on to another one: what a test derives from to watch a comm's lane,
// or to bend what it says.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "comm/state.h"
#include "transport/lane.h"

namespace braid::test {

class LaneOver : public transport::Lane {
 public:
  explicit LaneOver(std::unique_ptr<transport::Lane> lane) : lane_(std::move(lane)) {}

  const transport::LaneCaps& caps() const override { return lane_->caps(); }
  const std::string& name() const override { return lane_->name(); }
  transport::PutResult try_put(transport::PeerSet peers, const transport::PieceTag& tag,
                               std::span<const std::byte> payload) override {
    return lane_->try_put(peers, tag, payload);
  }
  uint32_t available(int src) const override { return lane_->available(src); }
  transport::Arrival at(int src, uint32_t i) const override { return lane_->at(src, i); }
  void release(int src, uint32_t count) override { lane_->release(src, count); }
  uint64_t posted(int peer) const override { return lane_->posted(peer); }
  uint64_t acked(int peer) const override { return lane_->acked(peer); }
  void for_each_unacked(
      int peer, const std::function<void(const transport::Arrival&)>& visit) const override {
    lane_->for_each_unacked(peer, visit);
  }
  bool progress() override { return lane_->progress(); }
  int64_t next_event_ns() const override { return lane_->next_event_ns(); }
  Status health(int peer) const override { return lane_->health(peer); }
  bool is_mending(int peer) const override { return lane_->is_mending(peer); }

 protected:
  transport::Lane& below() const { return *lane_; }

 private:
  const std::unique_ptr<transport::Lane> lane_;
};

/// Puts a `Derived` over each lane of the comm, between its calls.
template <typename Derived, typename... Arguments>
void put_over_lanes(comm::Comm& comm, Arguments&... arguments) {
  comm::Comm::State& state = comm.state();
  const std::scoped_lock lock(state.mutex, state.health_mutex);
  for (comm::LinkState& link : state.links)
    link.lane = std::make_unique<Derived>(std::move(link.lane), arguments...);
}

}  // namespace braid::test
