// What a call still has to put, and the way out when a link fails: every cell goes once, over a
// link that is left, in its place; what nobody acknowledged goes again.
#include "coll/host/outbox.h"

#include <gtest/gtest.h>

#include "support/piece_bytes.h"
#include "support/scripted_lane.h"

namespace braid::coll {
namespace {

using test::ScriptedLane;
using transport::PeerSet;

constexpr uint64_t kEpoch = 7;
constexpr uint32_t kCell = 64;
constexpr uint32_t kQuarter = plan::kWhole / 4;

/// A cell that was put: by which link, to whom, which.
struct PutCell {
  int link;
  uint64_t peers;
  uint64_t cell;
  friend auto operator<=>(const PutCell&, const PutCell&) = default;
};
void PrintTo(const PutCell& put, std::ostream* out) {
  *out << "link " << put.link << " peers " << put.peers << " cell " << put.cell;
}
uint64_t to(int peer) { return PeerSet::only(peer).bits(); }

class HostOutbox : public testing::Test {
 protected:
  /// Rank 1 of `size`.
  void open(int size, const std::vector<transport::LaneCaps>& links, plan::Shares shares) {
    state_.identity.rank = 1;
    state_.identity.size = size;
    for (const transport::LaneCaps& caps : links) {
      comm::LinkState& link = state_.links.emplace_back();
      link.facts.name = "link" + std::to_string(state_.links.size() - 1);
      link.lane = std::make_unique<ScriptedLane>(1, size, caps);
    }
    state_.report.links.resize(links.size());
    outbox_ = std::make_unique<Outbox>(state_, kEpoch, kCell, std::move(shares));
  }
  static transport::LaneCaps unicast() { return {.max_piece_bytes = kCell, .depth_pieces = 8}; }
  static transport::LaneCaps multicast() {
    return {.max_piece_bytes = kCell, .depth_pieces = 8, .can_multicast = true};
  }
  ScriptedLane& lane(int link) {
    return static_cast<ScriptedLane&>(*state_.links[static_cast<size_t>(link)].lane);
  }
  /// Cells of one block whose last cell is short.
  SendRange cells(uint64_t begin, uint64_t end) const {
    return {PieceKind::kOperand, false, 3, begin, end, {block_.data(), block_.size()}};
  }
  /// What the lanes took since the last time, every cell checked; in order per link.
  std::vector<PutCell> taken() {
    std::vector<PutCell> cells;
    for (int link = 0; link < static_cast<int>(state_.links.size()); ++link)
      for (const ScriptedLane::Put& put : lane(link).take_puts()) {
        const auto tag = decode_tag(put.tag);
        EXPECT_TRUE(tag.ok());
        EXPECT_EQ(tag.value().epoch, kEpoch);
        EXPECT_EQ(tag.value().kind, PieceKind::kOperand);
        EXPECT_FALSE(tag.value().forward);
        EXPECT_EQ(tag.value().block, 3);
        const uint64_t begin = tag.value().cell * kCell;
        const std::vector<std::byte> bytes(
            block_.begin() + static_cast<ptrdiff_t>(begin),
            block_.begin() + static_cast<ptrdiff_t>(std::min(begin + kCell, block_.size())));
        EXPECT_EQ(put.payload, bytes) << "cell " << tag.value().cell;
        cells.push_back({link, put.peers.bits(), tag.value().cell});
      }
    return cells;
  }
  std::vector<PutCell> pumped() {
    while (outbox_->pump()) {
    }
    return taken();
  }

  const std::vector<std::byte> block_ = test::piece_bytes_of(3, 15 * kCell + 9);  // 16 cells
  comm::Comm::State state_;
  std::unique_ptr<Outbox> outbox_;
};

using Cells = std::vector<PutCell>;

TEST_F(HostOutbox, EveryCellGoesOnceAndTheLastIsShort) {
  open(2, {unicast()}, {plan::kWhole});
  outbox_->push(0, 0, cells(13, 16));
  EXPECT_FALSE(outbox_->empty());
  EXPECT_TRUE(outbox_->pump());
  EXPECT_EQ(taken(), (Cells{{0, to(0), 13}, {0, to(0), 14}, {0, to(0), 15}}));
  EXPECT_FALSE(outbox_->pump()) << "all went at once";
  EXPECT_TRUE(outbox_->empty());
  EXPECT_EQ(state_.report.links[0].sent_bytes, 2u * kCell + 9);
}

TEST_F(HostOutbox, WhatIsEmptyIsNotQueued) {
  open(3, {unicast()}, {plan::kWhole});
  outbox_->push(0, 0, cells(5, 5));
  outbox_->push_all(0, PeerSet(), cells(0, 5));
  EXPECT_TRUE(outbox_->empty());
  EXPECT_FALSE(outbox_->pump());
}

// One queue and one put for all where the lane can, and as much is counted as sent; a queue each
// elsewhere, or for one peer alone.
TEST_F(HostOutbox, ACellForAllIsOnePutOfAMulticastLane) {
  open(4, {multicast(), unicast()}, {plan::kWhole / 2, plan::kWhole / 2});
  const PeerSet all = PeerSet::all_but(1, 4);
  outbox_->push_all(0, all, cells(0, 2));
  outbox_->push_all(1, all, cells(2, 3));
  outbox_->push(0, 3, cells(9, 10));
  EXPECT_EQ(pumped(), (Cells{{0, all.bits(), 0},
                             {0, all.bits(), 1},
                             {0, to(3), 9},
                             {1, to(2), 2},
                             {1, to(3), 2},
                             {1, to(0), 2}}));
  EXPECT_EQ(state_.report.links[0].sent_bytes, 3u * kCell);
  EXPECT_EQ(state_.report.links[1].sent_bytes, 3u * kCell);
}

TEST_F(HostOutbox, ASlowPeerHoldsUpNobodyElse) {
  open(3, {unicast()}, {plan::kWhole});
  lane(0).block(2);
  outbox_->push_all(0, PeerSet::all_but(1, 3), cells(0, 3));
  EXPECT_EQ(pumped(), (Cells{{0, to(0), 0}, {0, to(0), 1}, {0, to(0), 2}}));
  EXPECT_TRUE(outbox_->waits(0, 2));
  EXPECT_FALSE(outbox_->waits(0, 0));
  lane(0).block(2, false);
  EXPECT_EQ(pumped(), (Cells{{0, to(2), 0}, {0, to(2), 1}, {0, to(2), 2}}));
  EXPECT_FALSE(outbox_->waits(0, 2));
}

// A lane that takes one cell at a time serves the peers in turn, from the one after us.
TEST_F(HostOutbox, TheTurnPassesOnOverPumps) {
  open(4, {unicast()}, {plan::kWhole});
  outbox_->push_all(0, PeerSet::all_but(1, 4), cells(0, 2));
  Cells seen;
  for (int i = 0; i < 6; ++i) {
    lane(0).take(1);
    EXPECT_TRUE(outbox_->pump());
    for (const PutCell& put : taken()) seen.push_back(put);
  }
  EXPECT_EQ(seen, (Cells{{0, to(2), 0},
                         {0, to(3), 0},
                         {0, to(0), 0},
                         {0, to(2), 1},
                         {0, to(3), 1},
                         {0, to(0), 1}}));
}

// An entry that a lane does not take holds back the cells for its peer, and those for everybody.
TEST_F(HostOutbox, OwnedPiecesGoFirst) {
  open(3, {multicast()}, {plan::kWhole});
  const auto tag = encode_tag({kEpoch, PieceKind::kOperand, false, 3, 15});
  const std::span<const std::byte> bytes(block_.data() + 15 * kCell, 9);
  outbox_->push_all(0, PeerSet::all_but(1, 3), cells(0, 1));
  outbox_->push(0, 2, cells(4, 5));
  outbox_->push(0, 0, cells(5, 6));
  outbox_->push_piece(0, 2, tag, bytes);
  lane(0).block(2);
  EXPECT_EQ(pumped(), (Cells{{0, to(0), 5}})) << "cells for peer 0 alone wait for nobody";
  lane(0).block(2, false);
  EXPECT_EQ(pumped(),
            (Cells{{0, to(2), 15}, {0, PeerSet::all_but(1, 3).bits(), 0}, {0, to(2), 4}}));
  EXPECT_TRUE(outbox_->empty());
}

// The lane has room again by the time that the piece was refused.
TEST_F(HostOutbox, NothingOvertakesAnOwnedPiece) {
  open(3, {multicast()}, {plan::kWhole});
  const auto tag = encode_tag({kEpoch, PieceKind::kOperand, false, 3, 15});
  outbox_->push_all(0, PeerSet::all_but(1, 3), cells(0, 1));
  outbox_->push(0, 2, cells(4, 5));
  outbox_->push_piece(0, 2, tag, std::span(block_).subspan(15 * kCell));
  lane(0).refuse(1);
  EXPECT_FALSE(outbox_->pump());
  EXPECT_EQ(taken(), Cells{});
  lane(0).take(1);
  EXPECT_TRUE(outbox_->pump()) << "a piece is something, too";
  EXPECT_EQ(taken(), (Cells{{0, to(2), 15}}));
}

TEST_F(HostOutbox, ALinkThatIsSuspectIsNotPutOn) {
  open(2, {unicast(), unicast()}, {plan::kWhole / 2, plan::kWhole / 2});
  outbox_->push(0, 0, cells(0, 1));
  outbox_->push(1, 0, cells(1, 2));
  state_.mark_down(0, "silent");
  EXPECT_EQ(pumped(), (Cells{{1, to(0), 1}}));
}

// 8 cells that wait on link 0, shares of a half and two quarters: 4 go to each link that is left,
// beginning where the range did. What had been put and acknowledged does not go again.
TEST_F(HostOutbox, WhatWaitsOnAFailedLinkIsCutByTheSharesOfTheOthers) {
  open(2, {unicast(), unicast(), unicast()}, {2 * kQuarter, kQuarter, kQuarter});
  outbox_->push(0, 0, cells(5, 15));
  lane(0).take(2);
  EXPECT_EQ(pumped(), (Cells{{0, to(0), 5}, {0, to(0), 6}}));
  lane(0).ack(0, 2);
  outbox_->evacuate(0, "cut");
  EXPECT_TRUE(outbox_->fate().ok());
  EXPECT_EQ(pumped(), (Cells{{1, to(0), 7},
                             {1, to(0), 8},
                             {1, to(0), 9},
                             {1, to(0), 10},
                             {2, to(0), 11},
                             {2, to(0), 12},
                             {2, to(0), 13},
                             {2, to(0), 14}}));
  EXPECT_TRUE(outbox_->empty());
  EXPECT_EQ(state_.links[0].resent_pieces, 0u);
}

// The peers' queues are each cut; a multicast range becomes one of each peer where the other lane
// cannot multicast, and stays one where it can.
TEST_F(HostOutbox, RangesForEverybodyAreCutToo) {
  open(3, {multicast(), multicast(), unicast()}, {2 * kQuarter, kQuarter, kQuarter});
  const uint64_t all = PeerSet::all_but(1, 3).bits();
  outbox_->push_all(0, PeerSet::all_but(1, 3), cells(0, 4));
  outbox_->evacuate(0, "cut");
  EXPECT_EQ(
      pumped(),
      (Cells{
          {1, all, 0}, {1, all, 1}, {2, to(2), 2}, {2, to(0), 2}, {2, to(2), 3}, {2, to(0), 3}}));
}

TEST_F(HostOutbox, RangesPushedOnAFailedLinkGoOverTheOthers) {
  open(2, {unicast(), unicast(), unicast()}, {2 * kQuarter, kQuarter, kQuarter});
  outbox_->evacuate(1, "cut");
  outbox_->push(1, 0, cells(0, 3));
  EXPECT_EQ(pumped(), (Cells{{0, to(0), 0}, {0, to(0), 1}, {2, to(0), 2}}));
  EXPECT_EQ(outbox_->first_usable_link(0), 0);
}

// Links without a share of this message carry it all the same when no other is left.
TEST_F(HostOutbox, ALinkWithoutAShareIsBetterThanNone) {
  open(2, {unicast(), unicast()}, {plan::kWhole, 0});
  outbox_->push(0, 0, cells(0, 2));
  outbox_->evacuate(0, "cut");
  EXPECT_EQ(pumped(), (Cells{{1, to(0), 0}, {1, to(0), 1}}));
}

// What was put and nobody acknowledged goes again on the first link that is left, oldest first and
// to the same peers; but not what is of an older call, or no piece of a call at all.
TEST_F(HostOutbox, WhatNobodyAcknowledgedGoesAgain) {
  open(3, {unicast(), unicast(), unicast()}, {kQuarter, 2 * kQuarter, kQuarter});
  const auto old = encode_tag({kEpoch - 1, PieceKind::kOperand, false, 3, 2});
  lane(1).try_put(PeerSet::only(0), old, std::span(block_).first(kCell));
  lane(1).try_put(PeerSet::only(0), comm::kProbeTag, {});
  (void)lane(1).take_puts();
  outbox_->push(1, 0, cells(0, 3));
  outbox_->push(1, 2, cells(8, 10));
  EXPECT_EQ(pumped().size(), 5u);
  lane(1).ack(0, 3);  // the two old ones and cell 0
  outbox_->evacuate(1, "silent");
  EXPECT_EQ(pumped(), (Cells{{0, to(2), 8}, {0, to(2), 9}, {0, to(0), 1}, {0, to(0), 2}}));
  EXPECT_EQ(state_.links[1].resent_pieces, 4u);
  EXPECT_EQ(state_.report.links[1].resent_pieces, 4u);
  EXPECT_EQ(state_.report.links[0].resent_pieces, 0u);
  EXPECT_TRUE(state_.links[1].is_down);
  EXPECT_EQ(state_.links[1].why, "silent");
}

TEST_F(HostOutbox, PiecesOfOlderCallsStayBehind) {
  open(2, {unicast(), unicast()}, {plan::kWhole, 0});
  const auto old = encode_tag({kEpoch - 1, PieceKind::kOperand, false, 3, 2});
  lane(0).try_put(PeerSet::only(0), old, std::span(block_).first(kCell));
  lane(0).try_put(PeerSet::only(0), comm::kProbeTag, {});
  (void)lane(0).take_puts();
  outbox_->evacuate(0, "silent");
  EXPECT_TRUE(outbox_->empty());
  EXPECT_EQ(state_.links[0].resent_pieces, 0u);
}

TEST_F(HostOutbox, OwnedPiecesMoveToTheFirstLinkThatIsLeft) {
  open(2, {unicast(), unicast(), unicast()}, {kQuarter, kQuarter, 2 * kQuarter});
  const auto tag = encode_tag({kEpoch, PieceKind::kOperand, false, 3, 15});
  outbox_->evacuate(0, "cut");
  outbox_->push_piece(1, 0, tag, std::span(block_).subspan(15 * kCell));
  outbox_->evacuate(1, "cut, too");
  EXPECT_EQ(outbox_->first_usable_link(0), 2);
  EXPECT_EQ(pumped(), (Cells{{2, to(0), 15}}));
}

// Once: a link that failed has nothing that could be moved a second time.
TEST_F(HostOutbox, ALinkIsEvacuatedOnce) {
  open(2, {unicast(), unicast()}, {plan::kWhole / 2, plan::kWhole / 2});
  outbox_->push(0, 0, cells(0, 2));
  (void)pumped();
  outbox_->evacuate(0, "first");
  outbox_->evacuate(0, "second");
  EXPECT_EQ(pumped(), (Cells{{1, to(0), 0}, {1, to(0), 1}}));
  EXPECT_EQ(state_.links[0].down_count, 1u);
  EXPECT_EQ(state_.links[0].why, "first");
}

// Found by a put, in the middle of a pump: what the lane says of its health is why.
TEST_F(HostOutbox, APutThatFindsTheLaneDeadEvacuatesIt) {
  for (const bool has_reason : {true, false}) {
    state_.links.clear();
    open(2, {unicast(), unicast()}, {plan::kWhole / 2, plan::kWhole / 2});
    outbox_->push(0, 0, cells(0, 4));
    lane(0).take(2);
    (void)pumped();
    lane(0).die(has_reason ? unavailable("the cable is out") : Status());
    EXPECT_EQ(pumped(), (Cells{{1, to(0), 0}, {1, to(0), 1}, {1, to(0), 2}, {1, to(0), 3}}));
    EXPECT_EQ(state_.links[0].why, has_reason ? "the cable is out" : "a put was refused");
    EXPECT_FALSE(outbox_->usable(0));
  }
}

TEST_F(HostOutbox, AnEntryThatFindsTheLaneDeadGoesOverAnother) {
  open(2, {unicast(), unicast()}, {plan::kWhole, 0});
  lane(0).die(unavailable("gone"));
  const auto tag = encode_tag({kEpoch, PieceKind::kOperand, false, 3, 15});
  outbox_->push_piece(0, 0, tag, std::span(block_).subspan(15 * kCell));
  EXPECT_EQ(pumped(), (Cells{{1, to(0), 15}}));
}

// Two nodes of two, one link between them and one inside: that one leads to nobody there.
TEST_F(HostOutbox, TheLastLinkToAnotherNodeIsKeptWhileItsWaysAreMadeAnew) {
  open(4, {unicast(), unicast()}, {plan::kWhole});
  state_.links[1].reach = PeerSet::only(0);
  outbox_->push(0, 2, cells(0, 3));
  outbox_->push(0, 3, cells(3, 4));
  lane(0).take(1);
  EXPECT_EQ(pumped(), (Cells{{0, to(2), 0}}));
  for (const int peer : {0, 2, 3}) lane(0).lose_way(peer, unavailable("reset"));
  lane(0).take(100);
  EXPECT_EQ(pumped(), Cells{});
  EXPECT_TRUE(outbox_->fate().ok()) << outbox_->fate().to_string();
  EXPECT_TRUE(outbox_->usable(0));
  lane(0).mend(3);
  EXPECT_EQ(pumped(), (Cells{{0, to(3), 3}}));
  lane(0).mend(2);
  EXPECT_EQ(pumped(), (Cells{{0, to(2), 1}, {0, to(2), 2}})) << "the node mate's way is still down";
  EXPECT_TRUE(outbox_->empty());
  EXPECT_EQ(state_.links[0].resent_pieces, 0u);
}

// With a second link between the nodes nobody waits for the first one.
TEST_F(HostOutbox, ALinkWhoseWaysAreMadeAnewIsLeftForAnotherThatHasAllItsPeers) {
  open(4, {unicast(), unicast(), unicast()}, {plan::kWhole / 2, plan::kWhole / 2});
  state_.links[2].reach = PeerSet::only(0);
  outbox_->push(0, 2, cells(0, 2));
  lane(0).lose_way(2, unavailable("reset"));
  EXPECT_EQ(pumped(), (Cells{{1, to(2), 0}, {1, to(2), 1}}));
  EXPECT_FALSE(outbox_->usable(0));
  EXPECT_EQ(state_.links[0].why, "reset");
}

TEST_F(HostOutbox, WithoutAnyLinkTheCallFails) {
  open(2, {unicast(), unicast()}, {plan::kWhole / 2, plan::kWhole / 2});
  outbox_->push(1, 0, cells(0, 2));
  outbox_->evacuate(0, "first");
  EXPECT_TRUE(outbox_->fate().ok());
  outbox_->evacuate(1, "second");
  EXPECT_EQ(outbox_->fate().to_string(),
            unavailable("link link1 failed and no other is left: second").to_string());
  EXPECT_EQ(outbox_->first_usable_link(0), -1);
  EXPECT_FALSE(outbox_->pump());
}

TEST_F(HostOutbox, WhatIsPushedWithoutAnyLinkFailsTheCall) {
  open(3, {unicast()}, {plan::kWhole});
  state_.mark_down(0, "silent for 3 s");  // by what is not this outbox
  EXPECT_TRUE(outbox_->fate().ok());
  outbox_->push(0, 2, cells(0, 1));
  EXPECT_EQ(outbox_->fate().to_string(),
            unavailable("no link is left to rank 2: silent for 3 s").to_string());
}

// The call has failed, and the peers shall hear of it.
TEST_F(HostOutbox, DroppedRangesLeaveOwnedPieces) {
  open(3, {multicast(), unicast()}, {plan::kWhole / 2, plan::kWhole / 2});
  const auto tag = encode_tag({kEpoch, PieceKind::kOperand, false, 3, 15});
  outbox_->push_all(0, PeerSet::all_but(1, 3), cells(0, 2));
  outbox_->push(1, 0, cells(2, 4));
  outbox_->push_piece(1, 2, tag, std::span(block_).subspan(15 * kCell));
  outbox_->drop_ranges();
  EXPECT_FALSE(outbox_->waits(0, 0));
  EXPECT_FALSE(outbox_->waits(1, 0));
  EXPECT_TRUE(outbox_->waits(1, 2));
  EXPECT_EQ(pumped(), (Cells{{1, to(2), 15}}));
  EXPECT_TRUE(outbox_->empty());
}

TEST_F(HostOutbox, WaitsSaysForWhom) {
  open(4, {multicast()}, {plan::kWhole});
  lane(0).take(0);
  outbox_->push_all(0, PeerSet::only(0).with(2), cells(0, 2));
  EXPECT_TRUE(outbox_->waits(0, 0));
  EXPECT_TRUE(outbox_->waits(0, 2));
  EXPECT_FALSE(outbox_->waits(0, 3)) << "not for it";
  outbox_->push(0, 3, cells(3, 4));
  EXPECT_TRUE(outbox_->waits(0, 3));
}

// Where nothing can be lost nobody waits for it.
TEST_F(HostOutbox, OnlyLanesThatCanLosePiecesMustBeAcknowledged) {
  transport::LaneCaps lossy = unicast(), slow = unicast();
  lossy.can_lose = true;
  slow.is_paced = true;
  open(3, {unicast(), lossy, slow}, {2 * kQuarter, kQuarter, kQuarter});
  outbox_->push(0, 0, cells(0, 1));
  (void)pumped();
  EXPECT_TRUE(outbox_->acked());
  outbox_->push(2, 2, cells(0, 1));
  (void)pumped();
  EXPECT_FALSE(outbox_->acked());
  lane(2).ack(2);
  EXPECT_TRUE(outbox_->acked());
  outbox_->push(1, 0, cells(0, 2));
  (void)pumped();
  lane(1).ack(0);
  EXPECT_FALSE(outbox_->acked()) << "one of two";
  state_.mark_down(1, "silent");
  EXPECT_TRUE(outbox_->acked()) << "a link that was given up is not waited for";
}

}  // namespace
}  // namespace braid::coll
