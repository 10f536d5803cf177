// A lane whose other ends are the test: it takes as many pieces as it is told to, remembers them,
// and acknowledges when the test says so. For what lies above lanes and must do the right thing
// when one is full, silent or dead.
//
// Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "transport/lane.h"

namespace braid::test {

class ScriptedLane final : public transport::Lane {
 public:
  struct Put {
    transport::PeerSet peers;
    transport::PieceTag tag;
    std::vector<std::byte> payload;
  };

  ScriptedLane(int rank, int size, transport::LaneCaps caps)
      : rank_(rank), caps_(caps), peers_(static_cast<size_t>(size)) {}

  /// Pieces that are taken from now on: kFull after those.
  void take(int num_pieces) { room_ = num_pieces; }
  /// The next puts answer kFull, whatever they are.
  void refuse(int num_puts) { refusals_ = num_puts; }
  /// Of what is taken, none for this peer, or any number again.
  void block(int peer, bool is_blocked = true) { of(peer).is_blocked = is_blocked; }
  /// Puts answer kDown, and health() this.
  void die(Status why) {
    is_down_ = true;
    why_ = std::move(why);
  }
  /// Puts to this peer answer kDown, and health() this, until mend(): the lane makes the way anew.
  void lose_way(int peer, Status why) { of(peer).why = std::move(why); }
  void mend(int peer) { of(peer).why = {}; }
  /// The peer releases its oldest pieces.
  void ack(int peer, uint64_t num_pieces = 1) {
    of(peer).acked += num_pieces;
    ASSERT_LE(of(peer).acked, of(peer).posted.size());
  }
  /// What was accepted since the last time.
  std::vector<Put> take_puts() { return std::exchange(puts_, {}); }

  const transport::LaneCaps& caps() const override { return caps_; }
  const std::string& name() const override { return name_; }
  transport::PutResult try_put(transport::PeerSet peers, const transport::PieceTag& tag,
                               std::span<const std::byte> payload) override {
    EXPECT_FALSE(peers.empty());
    EXPECT_FALSE(peers.contains(rank_)) << "a put to itself";
    EXPECT_LE(payload.size(), caps_.max_piece_bytes);
    if (is_down_) return transport::PutResult::kDown;
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer)
      if (peers.contains(peer) && is_mending(peer)) return transport::PutResult::kDown;
    if (refusals_ > 0 && refusals_-- > 0) return transport::PutResult::kFull;
    if (room_ == 0) return transport::PutResult::kFull;
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer)
      if (peers.contains(peer) && of(peer).is_blocked) return transport::PutResult::kFull;
    --room_;
    puts_.push_back({peers, tag, {payload.begin(), payload.end()}});
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer)
      if (peers.contains(peer)) of(peer).posted.push_back(puts_.back());
    return transport::PutResult::kAccepted;
  }
  uint32_t available(int) const override { return 0; }
  transport::Arrival at(int, uint32_t) const override { return {}; }
  void release(int, uint32_t) override {}
  uint64_t posted(int peer) const override { return of(peer).posted.size(); }
  uint64_t acked(int peer) const override { return of(peer).acked; }
  void for_each_unacked(
      int peer, const std::function<void(const transport::Arrival&)>& visit) const override {
    for (uint64_t i = acked(peer); i < posted(peer); ++i)
      visit({of(peer).posted[i].tag, of(peer).posted[i].payload});
  }
  bool progress() override { return false; }
  int64_t next_event_ns() const override { return INT64_MAX; }
  Status health(int peer) const override {
    if (peer == rank_) return {};
    return is_down_ ? why_ : of(peer).why;
  }
  bool is_mending(int peer) const override { return !is_down_ && !of(peer).why.ok(); }

 private:
  struct Peer {
    std::vector<Put> posted;
    uint64_t acked = 0;
    bool is_blocked = false;
    Status why;  // not ok: the way is being made anew
  };
  Peer& of(int peer) { return peers_.at(static_cast<size_t>(peer)); }
  const Peer& of(int peer) const { return peers_.at(static_cast<size_t>(peer)); }

  const int rank_;
  const transport::LaneCaps caps_;
  const std::string name_ = "scripted";
  std::vector<Peer> peers_;
  std::vector<Put> puts_;
  int room_ = 1 << 30, refusals_ = 0;
  bool is_down_ = false;
  Status why_;
};

}  // namespace braid::test
