// The sending side towards one peer: what a peer may say of acks and of new rings, and what is
// written again after one.
#include "transport/rdma/outbox.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace braid::transport::rdma {
namespace {

constexpr int kSender = 2;
constexpr RingShape kRing{4, 256};
constexpr RemoteRing kFirstRing{0x100000, 11}, kSecondRing{0x900000, 12};
constexpr uint64_t kOutboxNonce = 0x0dd0'5eed;

class RdmaOutbox : public testing::Test {
 protected:
  RdmaOutbox() { outbox_.point_at(kFirstRing, kOutboxNonce); }
  void push(uint64_t number) {
    PieceTag tag;
    tag.words[0] = number;
    const std::string payload = "piece " + std::to_string(number);
    outbox_.push(tag, std::as_bytes(std::span(payload)));
  }
  /// What goes to the network now, by its header.
  SlotHeader write() {
    write_ = outbox_.next_write();
    outbox_.wrote();
    SlotHeader header;
    std::memcpy(&header, write_.local + write_.bytes - sizeof header, sizeof header);
    EXPECT_TRUE(is_sealed(header, kOutboxNonce));
    return header;
  }
  std::vector<uint64_t> unacked() {
    std::vector<uint64_t> numbers;
    outbox_.for_each_unacked([&](const Arrival& a) {
      numbers.push_back(a.tag.words[0]);
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(a.payload.data()), a.payload.size()),
                "piece " + std::to_string(a.tag.words[0]));
    });
    return numbers;
  }

  std::vector<std::byte> slots_ = std::vector<std::byte>(kRing.bytes());
  Outbox outbox_{kSender, kRing, slots_.data()};
  sys::FabricTransfer write_;
};

TEST_F(RdmaOutbox, WritesPiecesInTheirOrderRoundTheRing) {
  for (uint64_t number = 0; number < 10; ++number) {
    ASSERT_TRUE(outbox_.has_room());
    push(number);
    const SlotHeader header = write();
    EXPECT_EQ(header.sequence, number);
    EXPECT_EQ(write_.remote_address + write_.bytes,
              kFirstRing.address + (number % kRing.depth + 1) * kRing.stride())
        << "the header ends the slot";
    EXPECT_EQ(write_.bytes, 64 + sizeof header) << "a line of payload and the header";
    EXPECT_EQ(write_.remote_key, kFirstRing.key);
    EXPECT_EQ(unpack(write_.immediate.value()).sequence, number);
    EXPECT_TRUE(outbox_.on_ack(number + 1));
  }
}

TEST_F(RdmaOutbox, HasRoomForADepthOfPiecesThatNobodyConfirmed) {
  for (uint64_t number = 0; number < kRing.depth; ++number) push(number);
  EXPECT_FALSE(outbox_.has_room());
  write();
  EXPECT_FALSE(outbox_.has_room()) << "written is not confirmed";
  EXPECT_TRUE(outbox_.on_ack(1));
  EXPECT_TRUE(outbox_.has_room());
  EXPECT_EQ(unacked(), (std::vector<uint64_t>{1, 2, 3}));
}

TEST_F(RdmaOutbox, AnAckOfWhatWasNotWrittenOrIsOldChangesNothing) {
  for (uint64_t number = 0; number < 3; ++number) push(number);
  write();
  write();
  EXPECT_FALSE(outbox_.on_ack(3)) << "the third is not written";
  EXPECT_FALSE(outbox_.on_ack(0));
  EXPECT_TRUE(outbox_.on_ack(2));
  EXPECT_FALSE(outbox_.on_ack(2));
  EXPECT_FALSE(outbox_.on_ack(1)) << "an ack that comes late must not take one back";
  EXPECT_FALSE(outbox_.on_ack(~uint64_t{0}));
  EXPECT_EQ(outbox_.acked(), 2U);
}

TEST_F(RdmaOutbox, IntoANewRingGoesAllThatHasNotArrived) {
  for (uint64_t number = 0; number < 4; ++number) {
    push(number);
    write();
  }
  EXPECT_TRUE(outbox_.on_ack(1));
  ASSERT_TRUE(outbox_.restart(1, kSecondRing, 2));
  EXPECT_TRUE(outbox_.has_unwritten());
  for (uint64_t number = 2; number < 4; ++number) {
    const SlotHeader header = write();
    EXPECT_EQ(header.sequence, number);
    EXPECT_EQ(header.life, 1U);
    EXPECT_EQ(write_.remote_key, kSecondRing.key);
    EXPECT_EQ(unpack(write_.immediate.value()).life, 1U);
  }
  EXPECT_FALSE(outbox_.has_unwritten());
  EXPECT_EQ(unacked(), (std::vector<uint64_t>{1, 2, 3}));
}

// A peer writes what it likes: less than it has confirmed, or more than there is.
TEST_F(RdmaOutbox, ARestartWithImpossibleNumbersIsRefused) {
  for (uint64_t number = 0; number < 3; ++number) {
    push(number);
    write();
  }
  EXPECT_TRUE(outbox_.on_ack(2));
  for (const uint64_t arrived : {uint64_t{0}, uint64_t{1}, uint64_t{4}, ~uint64_t{0}})
    EXPECT_FALSE(outbox_.restart(1, kSecondRing, arrived)) << arrived;
  EXPECT_EQ(outbox_.life(), 0U);
  EXPECT_EQ(outbox_.written(), 3U);
  EXPECT_TRUE(outbox_.restart(1, kSecondRing, 3));
  EXPECT_FALSE(outbox_.has_unwritten());
}

}  // namespace
}  // namespace braid::transport::rdma
