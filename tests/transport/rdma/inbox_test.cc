// A bad peer writes what it likes into its ring and announces what it likes: nothing is read out of
// bounds, nothing that was checked changes, and what is only late is told from what is wrong.
#include "transport/rdma/inbox.h"

#include <gtest/gtest.h>

#include <array>

#include "sys/fabric/fake.h"

namespace braid::transport::rdma {
namespace {

using Verdict = Inbox::Verdict;
constexpr int kSource = 3;
constexpr RingShape kShape{4, 256};
constexpr uint64_t kInboxNonce = 0x0dd0'5eed;

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
    h.tag.words[0] = sequence;
    return h;
  }
  void put(uint64_t sequence, SlotHeader header) {
    seal(header, kInboxNonce);
    put_unsealed(sequence, header);
  }
  void put_unsealed(uint64_t sequence, const SlotHeader& header) {
    std::memcpy(slot(sequence) + header_offset(kShape.slot_bytes), &header, sizeof header);
  }
  std::byte* payload(uint64_t sequence) {
    return slot(sequence) + payload_offset(kShape.slot_bytes, 8);
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
  Inbox inbox_{kSource, kShape, kInboxNonce};
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

TEST_F(RdmaInbox, WhatAHeaderDoesNotBearOutIsNotThere) {
  EXPECT_EQ(announce(0), Verdict::kUnfounded) << "nobody wrote anything";
  put_unsealed(0, good(0));
  EXPECT_EQ(announce(0), Verdict::kUnfounded);
  SlotHeader h = good(0);
  seal(h, kInboxNonce + 1);
  put_unsealed(0, h);
  EXPECT_EQ(announce(0), Verdict::kUnfounded) << "sealed by who was not told the nonce";
  put(0, good(0, kShape.slot_bytes + 1));
  EXPECT_EQ(announce(0), Verdict::kUnfounded);
  put(0, good(0, UINT32_MAX));
  EXPECT_EQ(announce(0), Verdict::kUnfounded);
  put(0, good(4));
  EXPECT_EQ(announce(0), Verdict::kUnfounded);
  h = good(0);
  h.life = 1;
  put(0, h);
  EXPECT_EQ(announce(0), Verdict::kUnfounded);
  h = good(0);
  h.payload_sum = 12345;
  put(0, h);
  EXPECT_EQ(announce(0), Verdict::kUnfounded);
  EXPECT_EQ(inbox_.available(), 0u);
  EXPECT_EQ(arrive(0), Verdict::kNew) << "the piece itself comes later all the same";
}

// A stranger's immediate comes at every byte of a write that is landing over an old piece.
TEST_F(RdmaInbox, HalfAWriteIsNotShown) {
  for (uint64_t s = 0; s < kShape.depth; ++s) ASSERT_EQ(arrive(s), Verdict::kNew);
  inbox_.release(kShape.depth);
  const uint64_t next = kShape.depth;
  std::array<std::byte, 64 + sizeof(SlotHeader)> write{};
  SlotHeader h = good(next);
  seal(h, kInboxNonce);
  for (size_t i = 0; i < 8; ++i) write[i] = static_cast<std::byte>(0xA0 + i);
  std::memcpy(write.data() + 64, &h, sizeof h);
  for (size_t landed = 0; landed < write.size(); ++landed) {
    EXPECT_EQ(announce(next), Verdict::kUnfounded) << landed << " bytes";
    payload(next)[landed] = write[landed];
  }
  EXPECT_EQ(announce(next), Verdict::kNew);
  EXPECT_EQ(inbox_.at(0).payload[7], std::byte{0xA7});
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
  std::memset(payload(0), 0x5A, 8);
  const uint64_t old_key = inbox_.ring_key();
  ASSERT_TRUE(inbox_.renew(*domain_).ok());
  EXPECT_NE(inbox_.ring_key(), old_key);
  EXPECT_EQ(inbox_.arrived(), 1u);
  // A zombie lands in the old ring and announces itself with the old life.
  SlotHeader zombie = good(1);
  zombie.life = 0;
  seal(zombie, kInboxNonce);
  std::memcpy(old_slot + header_offset(kShape.slot_bytes), &zombie, sizeof zombie);
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
