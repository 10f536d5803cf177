// Paced lanes: any lane held to a rate and given a latency, so that a machine without the real
// links shows how they behave together; and the switches by which an experiment changes, cuts or
// kills a link while it runs.
//
// Each end keeps two clocks, one per direction, that say when its link is free again. No tokens are
// counted: a piece moves its clock on by (payload + 64) / rate, so rates do not drift whatever the
// scheduler does.
//
//   sender    a piece departs at S = max(clock, now), the clock moves on; S travels behind the
//             payload. Pieces are taken up to 0.5 ms ahead of the clock, as a NIC's queue would. A
//             sender that was refused and comes back late (descheduled) finds its clock up to 20 ms
//             in the past and catches up.
//   receiver  a piece is due at max(clock, S + latency + its own time); it is shown by available()
//             when due. Its clock may lag the arrivals by up to 5 ms inside a busy spell, for the
//             same reason; after a pause it starts afresh, so short transfers take their full time,
//             the first byte included.
//
// A multicast lane is charged once at the sender; others once per peer. S is CLOCK_MONOTONIC: when
// it cannot be this machine's, the moment the piece was first seen takes its place.
//
// Threads: as Lane; set_pace() and set_link() by any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/connect.h"
#include "transport/lane.h"

namespace braid::transport {

enum class LinkSwitch : uint8_t {
  kOn,
  kCut,   // nothing moves in either direction, and nobody is told: health stays ok
  kDead,  // the same, and health says so: puts answer kDown
};

/// When a link that moves bytes at `rate` is free again.
class LinkClock {
 public:
  int64_t free_ns() const { return free_ns_; }
  /// Charges `bytes` from `begin_ns` on; returns when they have passed. rate_gbps 0 = no limit.
  int64_t charge(int64_t begin_ns, uint64_t bytes, double rate_gbps);

 private:
  int64_t free_ns_ = 0;
  double fraction_ns_ = 0;  // what whole nanoseconds leave over
};

class PacedLane final : public Lane {
 public:
  static constexpr uint32_t kHeaderBytes = 64;  // charged with every piece: tag, length, framing
  // Max_piece_bytes is smaller by this; the stamp travels in 8 of them.
  static constexpr uint32_t kTrailerBytes = 64;

  PacedLane(std::unique_ptr<Lane> lane, const PaceOptions& options, int num_ranks);

  void set_pace(const PaceOptions& options);
  void set_link(LinkSwitch to) { switch_.store(to, std::memory_order_relaxed); }

  const LaneCaps& caps() const override { return caps_; }
  const std::string& name() const override { return inner_->name(); }
  PutResult try_put(PeerSet peers, const PieceTag& tag,
                    std::span<const std::byte> payload) override;
  uint32_t available(int src) const override { return inbound(src).num_shown; }
  Arrival at(int src, uint32_t i) const override;
  void release(int src, uint32_t count) override;
  uint64_t posted(int peer) const override { return inner_->posted(peer); }
  uint64_t acked(int peer) const override { return inner_->acked(peer); }
  void for_each_unacked(int peer, const std::function<void(const Arrival&)>& visit) const override;
  bool progress() override;
  int64_t next_event_ns() const override;
  Status health(int peer) const override;
  bool is_mending(int peer) const override { return is_on() && inner_->is_mending(peer); }

 private:
  /// Unreleased pieces of one source, oldest first: `num_held` the caller released while the link
  /// was cut, then num_shown that it sees, then those that are not due yet.
  struct Inbound {
    std::deque<int64_t> due_ns;  // of every piece the inner lane shows, without the held ones
    uint32_t num_shown = 0;
    uint32_t num_held = 0;
  };

  Inbound& inbound(int src) { return inbound_[static_cast<size_t>(src)]; }
  const Inbound& inbound(int src) const { return inbound_[static_cast<size_t>(src)]; }
  bool is_on() const { return switch_.load(std::memory_order_relaxed) == LinkSwitch::kOn; }
  double rate_gbps() const { return rate_gbps_.load(std::memory_order_relaxed); }

  int64_t egress_begin_ns(int64_t now) const;
  std::span<const std::byte> stamped(std::span<const std::byte> payload, int64_t departs_ns);
  bool give_back_held();
  void charge_arrivals(int64_t now);
  int oldest_uncharged(int64_t now) const;
  int64_t arrival_ns(int src, int64_t now) const;
  bool show_due(int64_t now);

  const std::unique_ptr<Lane> inner_;
  LaneCaps caps_;
  std::atomic<double> rate_gbps_;
  std::atomic<int64_t> latency_ns_;
  std::atomic<LinkSwitch> switch_{LinkSwitch::kOn};

  LinkClock egress_, ingress_;
  // The last put was refused: the sender has more to send than the link takes.
  bool is_backlogged_ = false;
  int64_t retry_ns_ = INT64_MAX;  // when the clock will take the put that it refused
  std::vector<Inbound> inbound_;
  std::vector<std::byte> scratch_;  // payload and stamp of the piece being put
};

}  // namespace braid::transport
