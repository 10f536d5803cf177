// Meetings of one communicator's roll, without connections.
#include "bindings/nccl/core/nodes/comm_roll.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "sys/net/api.h"

namespace braid::nccl {

namespace {

class CommRollTest : public testing::Test {
 protected:
  struct Told {
    group::Peer* peer;
    std::string topic;
    Met met;
  };

  CommRollTest() {
    for (int rank = 0; rank < 3; ++rank) {
      peers_.push_back(std::make_unique<group::Peer>(sys::Fd(), Deadline::after_ns(1_s)));
      roll_.let_in(*peers_.back());
    }
  }
  group::Peer& peer(int rank) { return *peers_[static_cast<size_t>(rank)]; }
  void sign(int num_ranks) {
    for (int rank = 0; rank < num_ranks; ++rank) roll_.sign(peer(rank));
  }
  bool come(int rank, const std::string& topic, uint32_t num_ranks = 2,
            int64_t patience_ns = 10_s) {
    return roll_.come(
        peer(rank), topic,
        {static_cast<uint32_t>(rank), num_ranks, patience_ns, "of " + std::to_string(rank)});
  }

  std::vector<Told> told_;
  bool has_all_leave_ = false;
  std::vector<std::unique_ptr<group::Peer>> peers_;
  CommRoll roll_{"roll", sys::resolve("127.0.0.1", 0)->front(),
                 [this](group::Peer& to, const std::string& topic, const std::string& bytes) {
                   auto met = decode_met(std::as_bytes(std::span(bytes)));
                   told_.push_back({&to, topic, std::move(met).value()});
                   if (has_all_leave_) roll_.leave(to);
                 }};
};

TEST_F(CommRollTest, ALateOneHearsWhatAllHaveHeard) {
  sign(2);
  EXPECT_TRUE(come(1, "first"));
  EXPECT_TRUE(told_.empty());
  EXPECT_TRUE(come(0, "first"));
  EXPECT_TRUE(come(0, "first"));
  ASSERT_EQ(told_.size(), 3U);
  for (const Told& each : told_)
    EXPECT_EQ(each.met.words, (std::vector<std::string>{"of 0", "of 1"}));
  EXPECT_EQ(told_.back().peer, &peer(0));
}

TEST_F(CommRollTest, NobodyWaitsForWhoHasNotSigned) {
  sign(1);
  EXPECT_TRUE(come(0, "first"));
  ASSERT_EQ(told_.size(), 1U);
  EXPECT_EQ(told_[0].met.why_not, "1 of 2 ranks have signed the roll over nodes");
  EXPECT_FALSE(come(1, "first")) << "it has not signed";
}

TEST_F(CommRollTest, OneThatLeavesEndsEveryMeeting) {
  sign(3);
  EXPECT_TRUE(come(0, "first", 3));
  EXPECT_TRUE(come(1, "second", 3));
  roll_.leave(peer(2));
  ASSERT_EQ(told_.size(), 2U);
  for (const Told& each : told_) EXPECT_EQ(each.met.why_not, "a rank has ended");
  EXPECT_TRUE(come(0, "third", 3));
  EXPECT_EQ(told_.back().met.why_not, "a rank has ended");
}

// A connection whose queue is full ends while its rank is told.
TEST_F(CommRollTest, WhoLeavesAsItIsToldKeepsNobodyFromHearing) {
  has_all_leave_ = true;
  sign(3);
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(come(rank, "first", 3));
    EXPECT_TRUE(come(rank, "second", 3));
  }
  roll_.leave(peer(2));
  std::set<group::Peer*> who;
  for (const Told& each : told_) {
    EXPECT_EQ(each.met.why_not, "a rank has ended");
    who.insert(each.peer);
  }
  EXPECT_EQ(who, (std::set<group::Peer*>{&peer(0), &peer(1)}));
  EXPECT_TRUE(roll_.is_empty());
}

TEST_F(CommRollTest, PatienceIsTheFirstOnes) {
  sign(2);
  EXPECT_TRUE(come(1, "first", 2, 0));
  roll_.expire();
  ASSERT_EQ(told_.size(), 1U);
  EXPECT_EQ(told_[0].met.why_not, "1 of 2 ranks came in time");
}

TEST_F(CommRollTest, MeetingsAreBounded) {
  sign(2);
  int num_meetings = 0;
  while (num_meetings < 1000 && come(0, std::to_string(num_meetings))) ++num_meetings;
  EXPECT_EQ(num_meetings, 64);
}

}  // namespace

}  // namespace braid::nccl
