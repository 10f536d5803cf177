// Which silence is a link's and which a peer's: judged by times that the test says.
#include "coll/host/stall_watch.h"

#include <gtest/gtest.h>

#include "support/scripted_lane.h"

namespace braid::coll {
namespace {

using Finding = StallWatch::Finding;
using test::ScriptedLane;
using transport::PeerSet;

constexpr int64_t kStall_ns = 1000;
constexpr int64_t kStart_ns = 50'000;
constexpr uint32_t kPieceBytes = 128;

/// Rank 0 with some links; times are counted from the start of the call.
class StallWatches : public testing::Test {
 protected:
  void open(int num_links, int size = 3) {
    state_.identity.rank = 0;
    state_.identity.size = size;
    for (int i = 0; i < num_links; ++i) {
      state_.links.emplace_back().lane = std::make_unique<ScriptedLane>(
          0, size, transport::LaneCaps{.max_piece_bytes = kPieceBytes, .depth_pieces = 4});
    }
    state_.report.links.resize(state_.links.size());
    outbox_ = std::make_unique<Outbox>(state_, 1, kPieceBytes,
                                       plan::Shares(static_cast<size_t>(num_links), 1));
    watch();
  }
  void watch() { watch_ = std::make_unique<StallWatch>(state_, kStall_ns, kStart_ns); }
  ScriptedLane& lane(size_t link) { return static_cast<ScriptedLane&>(*state_.links[link].lane); }
  void post(size_t link, int peer) {
    EXPECT_EQ(lane(link).try_put(PeerSet::only(peer), {}, {}), transport::PutResult::kAccepted);
  }
  void ack(size_t link, int peer) { lane(link).ack(peer); }
  Finding look(int64_t at_ns) { return watch_->check(kStart_ns + at_ns, *outbox_); }
  void enter(int64_t at_ns) { watch_->all_entered(kStart_ns + at_ns); }
  void expect_nothing(int64_t at_ns) {
    const Finding found = look(at_ns);
    EXPECT_EQ(found.kind, Finding::kNothing) << "at " << at_ns << ": link " << found.link;
  }
  void expect(Finding::Kind kind, int link, int peer, int64_t silent_ns, int64_t at_ns) {
    const Finding found = look(at_ns);
    EXPECT_EQ(found.kind, kind) << "at " << at_ns;
    EXPECT_EQ(found.link, link) << "at " << at_ns;
    EXPECT_EQ(found.peer, peer) << "at " << at_ns;
    EXPECT_EQ(found.silent_ns, silent_ns) << "at " << at_ns;
  }

  comm::Comm::State state_;
  std::unique_ptr<Outbox> outbox_;
  std::unique_ptr<StallWatch> watch_;
};

// Link 1 is silent towards peer 2, who acknowledges on link 0 in the second half of the silence.
TEST_F(StallWatches, ALinkThatIsSilentWhileItsPeerAnswersOnAnotherStalls) {
  open(2);
  enter(0);
  post(1, 2);
  post(0, 2);
  expect_nothing(0);
  post(0, 2);
  ack(0, 2);
  expect_nothing(600);
  expect_nothing(999);
  expect(Finding::kStalled, 1, 2, 1000, 1000);
}

TEST_F(StallWatches, AnAnswerInTheFirstHalfProvesNothing) {
  open(2);
  enter(0);
  post(1, 2);
  post(0, 2);
  post(0, 2);
  expect_nothing(0);
  ack(0, 2);
  expect_nothing(500);
  expect_nothing(1000);
  expect_nothing(1400);
  ack(0, 2);
  post(0, 2);  // the other stays busy: no probe
  expect(Finding::kStalled, 1, 2, 1450, 1450);
}

TEST_F(StallWatches, AnAnswerOfAnotherPeerProvesNothing) {
  open(2);
  enter(0);
  post(1, 2);
  post(0, 2);
  post(0, 1);
  expect_nothing(0);
  ack(0, 1);
  expect_nothing(700);
  expect_nothing(1000);
}

// It waits for a third rank, until which it takes nothing.
TEST_F(StallWatches, NothingIsJudgedBeforeAllHaveEntered) {
  open(2);
  post(1, 2);
  post(0, 2);
  post(0, 2);
  expect_nothing(0);
  ack(0, 2);
  expect_nothing(700);
  expect_nothing(1000);
  enter(1100);
  expect_nothing(1101);
  ack(0, 2);
  post(0, 2);
  expect_nothing(1700);
  expect_nothing(2099);
  expect(Finding::kStalled, 1, 2, 1000, 2100);
}

TEST_F(StallWatches, AnAcknowledgementEndsTheSilence) {
  open(2);
  enter(0);
  post(1, 2);
  post(1, 2);
  post(0, 2);
  post(0, 2);
  expect_nothing(0);
  ack(1, 2);
  ack(0, 2);
  expect_nothing(900);
  ack(0, 2);
  post(0, 2);
  expect_nothing(1500);
  expect_nothing(1899);
  expect(Finding::kStalled, 1, 2, 1000, 1900);
}

TEST_F(StallWatches, ALinkWithNothingOutstandingIsNotSilent) {
  open(2);
  enter(0);
  post(0, 2);
  post(0, 2);
  expect_nothing(0);
  expect_nothing(400);
  post(1, 2);  // the first on link 1, and silence counts from before it at most
  ack(0, 2);
  post(0, 2);
  expect_nothing(950);
  expect_nothing(1399);
  expect(Finding::kStalled, 1, 2, 1000, 1400);
}

// A lane that takes nothing has nothing posted, and is silent all the same.
TEST_F(StallWatches, WhatWaitsToBeTakenIsOutstanding) {
  open(2);
  const std::vector<std::byte> bytes(kPieceBytes);
  lane(1).take(0);
  outbox_->push(1, 2, {PieceKind::kData, false, 0, 0, 1, {bytes.data(), bytes.size()}});
  enter(0);
  post(0, 2);
  post(0, 2);
  expect_nothing(0);
  ack(0, 2);
  expect_nothing(600);
  expect(Finding::kStalled, 1, 2, 1000, 1000);
}

// No other link has anything outstanding to the peer, so none can answer: put something there.
TEST_F(StallWatches, AProbeIsWantedWhereNothingCouldAnswer) {
  open(2);
  post(1, 2);
  expect_nothing(0);
  expect_nothing(499);
  expect(Finding::kProbe, 0, 2, 500, 500);  // before all have entered, too
  expect_nothing(501);
  expect_nothing(749);
  expect(Finding::kProbe, 0, 2, 750, 750);
  enter(760);
  post(0, 2);
  expect_nothing(1500);
  ack(0, 2);
  expect(Finding::kProbe, 0, 2, 745, 1505);  // answered, but the silence is short
  post(0, 2);
  expect_nothing(1759);
  expect(Finding::kStalled, 1, 2, 1000, 1760);
}

TEST_F(StallWatches, EachPeerIsProbedForItself) {
  open(2);
  post(1, 1);
  post(1, 2);
  expect_nothing(0);
  expect(Finding::kProbe, 0, 1, 500, 500);
  expect(Finding::kProbe, 0, 2, 500, 500);
  expect_nothing(500);
}

TEST_F(StallWatches, TheLastLinkIsNeitherJudgedNorProbed) {
  open(1);
  enter(0);
  post(0, 1);
  expect_nothing(0);
  expect_nothing(100'000);
}

// Nor does it bear witness, nor carry a probe.
TEST_F(StallWatches, LinksGivenUpAreLeftAlone) {
  open(3);
  enter(0);
  post(0, 2);
  post(1, 2);
  post(2, 2);
  post(2, 2);
  expect_nothing(0);
  state_.links[0].is_down = true;
  ack(2, 2);
  expect_nothing(700);
  expect(Finding::kStalled, 1, 2, 1000, 1000);
  state_.links[2].is_down = true;
  expect_nothing(1001);
  expect_nothing(5000);
}

// At least the time that it takes to drain a full lane twice: 4 pieces of 128 bytes at 0.1 GB/s.
TEST_F(StallWatches, ASlowLinkIsGivenItsTime) {
  open(2);
  state_.links[1].facts.rate_gbps = 0.1;
  enter(0);
  post(1, 2);
  for (int i = 0; i < 4; ++i) post(0, 2);
  expect_nothing(0);
  ack(0, 2);
  expect_nothing(4000);
  ack(0, 2);
  expect_nothing(5200);
  expect_nothing(10239);
  expect(Finding::kStalled, 1, 2, 10240, 10240);
}

TEST_F(StallWatches, AFastLinkIsGivenTheStallTime) {
  open(2);
  state_.links[1].facts.rate_gbps = 50;
  enter(0);
  post(1, 2);
  post(0, 2);
  post(0, 2);
  expect_nothing(0);
  ack(0, 2);
  expect_nothing(999);
  expect(Finding::kStalled, 1, 2, 1000, 1000);
}

TEST_F(StallWatches, KnowsWhenAnythingWasLastAcknowledged) {
  open(2);
  post(0, 1);
  post(1, 2);
  EXPECT_EQ(watch_->last_ack_ns(), kStart_ns) << "the start counts as one";
  (void)look(100);
  EXPECT_EQ(watch_->last_ack_ns(), kStart_ns);
  ack(1, 2);
  (void)look(200);
  EXPECT_EQ(watch_->last_ack_ns(), kStart_ns + 200);
  (void)look(300);
  EXPECT_EQ(watch_->last_ack_ns(), kStart_ns + 200);
}

// What was acknowledged before the call is no news of it.
TEST_F(StallWatches, AcknowledgementsOfEarlierCallsAreNone) {
  open(2);
  post(0, 2);
  ack(0, 2);
  watch();
  enter(0);
  post(0, 2);
  post(1, 2);
  (void)look(800);
  EXPECT_EQ(watch_->last_ack_ns(), kStart_ns);
  expect_nothing(1000);
}

}  // namespace
}  // namespace braid::coll
