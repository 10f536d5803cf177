// A bad peer writes what it likes into its ring and announces what it likes: nothing is read out of
// bounds, nothing that was checked changes, and what is only late is told from what is wrong.
#include "transport/rdma/inbox.h"

#include <gtest/gtest.h>

#include "sys/fabric/fake.h"

namespace braid::transport::rdma {
namespace {

using Verdict = Inbox::Verdict;
constexpr int kSource = 3;
constexpr RingShape kShape{4, 256};

class RdmaInbox : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = fabric_.open({});
    ASSERT_TRUE(opened.ok());
    domain_ = std::move(opened).value();
    ASSERT_TRUE(inbox_.open(*domain_).ok());
  }
  std::byte* slot(uint64_t sequence) {
    return reinterpret_cast<std::byte*>(inbox_.ring_address()) +
           sequence % kShape.depth * kShape.stride();
  }
  SlotHeader good(uint64_t sequence, uint32_t bytes = 8) {
    SlotHeader h;
    h.life = inbox_.life();
    h.sequence = sequence;
    h.bytes = bytes;
    h.sender = kSource;
    h.tag.words[0] = sequence;
    return h;
  }
  void put(uint64_t sequence, SlotHeader header) {
    seal(header);
    std::memcpy(slot(sequence) + kHeaderOffset, &header, sizeof header);
  }
  Verdict announce(uint64_t sequence) {
    return inbox_.on_piece({Kind::kPiece, kSource, inbox_.life(), sequence});
  }
  Verdict arrive(uint64_t sequence) {
    put(sequence, good(sequence));
    return announce(sequence);
  }

  sys::FakeFabric fabric_;
  std::unique_ptr<sys::FabricDomain> domain_;
  Inbox inbox_{kSource, kShape};
};

TEST_F(RdmaInbox, ShowsPiecesInSequenceOrderWhateverOrderTheyArriveIn) {
  EXPECT_EQ(arrive(2), Verdict::kNew);
  EXPECT_EQ(arrive(1), Verdict::kNew);
  EXPECT_EQ(inbox_.available(), 0u);
  EXPECT_EQ(arrive(0), Verdict::kNew);
  ASSERT_EQ(inbox_.available(), 3u);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(inbox_.at(i).tag.words[0], i);
}

TEST_F(RdmaInbox, SecondAnnouncementChangesNothing) {
  EXPECT_EQ(arrive(0), Verdict::kNew);
  EXPECT_EQ(announce(0), Verdict::kStale);
  inbox_.release(1);
  EXPECT_EQ(announce(0), Verdict::kStale);
  EXPECT_EQ(inbox_.available(), 0u);
  EXPECT_EQ(arrive(1), Verdict::kNew);
  EXPECT_EQ(inbox_.available(), 1u);
}

TEST_F(RdmaInbox, SequencesOutsideTheWindowAreStale) {
  EXPECT_EQ(arrive(kShape.depth), Verdict::kStale);
  EXPECT_EQ(arrive(0xFFFFF), Verdict::kStale);  // one before the first
  EXPECT_EQ(inbox_.available(), 0u);
}

TEST_F(RdmaInbox, BadHeadersAreBad) {
  SlotHeader h = good(0);
  std::memcpy(slot(0) + kHeaderOffset, &h, sizeof h);  // not sealed
  EXPECT_EQ(announce(0), Verdict::kBad);
  h = good(0, kShape.slot_bytes + 1);
  put(0, h);
  EXPECT_EQ(announce(0), Verdict::kBad);
  h = good(0, UINT32_MAX);
  put(0, h);
  EXPECT_EQ(announce(0), Verdict::kBad);
  put(0, good(4));
  EXPECT_EQ(announce(0), Verdict::kBad);
  h = good(0);
  h.sender = 1;
  put(0, h);
  EXPECT_EQ(announce(0), Verdict::kBad);
  h = good(0);
  h.payload_sum = 12345;
  put(0, h);
  EXPECT_EQ(announce(0), Verdict::kBad);
  EXPECT_EQ(inbox_.available(), 0u);
}

TEST_F(RdmaInbox, HeaderWrittenAgainAfterTheCheckIsNotRead) {
  EXPECT_EQ(arrive(0), Verdict::kNew);
  put(0, good(0, UINT32_MAX));
  EXPECT_EQ(inbox_.at(0).payload.size(), 8u);
}

TEST_F(RdmaInbox, RenewedRingIgnoresTheOldLifeAndKeepsWhatWasShown) {
  EXPECT_EQ(arrive(0), Verdict::kNew);
  EXPECT_EQ(arrive(2), Verdict::kNew);  // out of order: will be sent again
  std::byte* old_slot = slot(1);
  std::memset(slot(0) + kPayloadOffset, 0x5A, 8);
  const uint64_t old_key = inbox_.ring_key();
  ASSERT_TRUE(inbox_.renew(*domain_).ok());
  EXPECT_NE(inbox_.ring_key(), old_key);
  EXPECT_EQ(inbox_.arrived(), 1u);
  // A zombie lands in the old ring and announces itself with the old life.
  SlotHeader zombie = good(1);
  zombie.life = 0;
  seal(zombie);
  std::memcpy(old_slot + kHeaderOffset, &zombie, sizeof zombie);
  EXPECT_EQ(inbox_.on_piece({Kind::kPiece, kSource, 0, 1}), Verdict::kStale);
  EXPECT_EQ(inbox_.at(0).payload[7], std::byte{0x5A});
  EXPECT_EQ(arrive(1), Verdict::kNew);
  EXPECT_EQ(arrive(2), Verdict::kNew);
  EXPECT_EQ(inbox_.available(), 3u);
}

TEST_F(RdmaInbox, ManyWraps) {
  for (uint64_t s = 0; s < (1u << kSequenceBits) + 100; ++s) {
    ASSERT_EQ(arrive(s), Verdict::kNew) << s;
    ASSERT_EQ(inbox_.at(0).tag.words[0], s);
    inbox_.release(1);
  }
}

}  // namespace
}  // namespace braid::transport::rdma
