#include "transport/rdma/wire.h"

#include <gtest/gtest.h>

namespace braid::transport::rdma {
namespace {

constexpr uint64_t kWireNonce = 0x1234'5678'9abc'def0;

TEST(RdmaWire, ImmediatesKeepEveryField) {
  for (const Kind kind : {Kind::kPiece, Kind::kAck, Kind::kAsk, Kind::kAnswer})
    for (const int rank : {0, 1, 31, 63})
      for (const uint32_t life : {0u, 7u, 15u})
        for (const uint64_t sequence : {0ull, 1ull, 0xFFFFFull}) {
          const Immediate back = unpack(pack({kind, rank, life, sequence}));
          EXPECT_EQ(back.kind, kind);
          EXPECT_EQ(back.rank, rank);
          EXPECT_EQ(back.life, life);
          EXPECT_EQ(back.sequence, sequence);
        }
}

TEST(RdmaWire, SequencesAreUnwrappedNearWhatIsExpected) {
  constexpr uint64_t kSpan = 1 << kSequenceBits;
  for (const uint64_t near : {uint64_t{1000000}, 5 * kSpan - 1, 5 * kSpan, 7 * kSpan + 3})
    for (int64_t off = -1000; off <= 1000; ++off) {
      const uint64_t full = near + static_cast<uint64_t>(off);
      EXPECT_EQ(nearest(near, full & (kSpan - 1)), full);
    }
}

TEST(RdmaWire, BeforeTheFirstSequenceIsFarOutside) {
  EXPECT_GT(nearest(0, (1 << kSequenceBits) - 1), uint64_t{1} << 60);
}

TEST(RdmaWire, AnyFlippedBitOfAHeaderBreaksItsSeal) {
  SlotHeader header;
  header.sequence = 77;
  header.bytes = 4096;
  header.tag.words = {1, 2, 3, 4};
  seal(header, kWireNonce);
  ASSERT_TRUE(is_sealed(header, kWireNonce));
  EXPECT_FALSE(is_sealed(header, kWireNonce + 1));
  EXPECT_FALSE(is_sealed(SlotHeader{}, kWireNonce)) << "memory that nobody wrote";
  for (size_t bit = 0; bit < sizeof header * 8; ++bit) {
    SlotHeader broken = header;
    reinterpret_cast<unsigned char*>(&broken)[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    EXPECT_FALSE(is_sealed(broken, kWireNonce)) << "bit " << bit;
  }
}

TEST(RdmaWire, AnyFlippedBitOfAControlLineBreaksItsSeal) {
  ControlLine line;
  line.life = 3;
  line.arrived = 12;
  seal(line, kWireNonce);
  ASSERT_TRUE(is_sealed(line, kWireNonce));
  EXPECT_FALSE(is_sealed(line, 0));
  for (size_t bit = 0; bit < sizeof line * 8; ++bit) {
    ControlLine broken = line;
    reinterpret_cast<unsigned char*>(&broken)[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    EXPECT_FALSE(is_sealed(broken, kWireNonce)) << "bit " << bit;
  }
}

TEST(RdmaWire, ChecksumSeesLengthAndTail) {
  const unsigned char bytes[16] = {1, 2, 3};
  EXPECT_NE(checksum(bytes, 9), checksum(bytes, 10));
  const unsigned char other[16] = {1, 2, 3, 0, 0, 0, 0, 0, 9};
  EXPECT_NE(checksum(bytes, 9), checksum(other, 9));
  EXPECT_EQ(checksum(bytes, 8), checksum(other, 8));
}

TEST(RdmaWire, SlotsNeverShareACacheLine) {
  for (const uint32_t bytes : {1u, 63u, 64u, 65u, 65536u}) {
    EXPECT_EQ(slot_stride(bytes) % 64, 0u);
    EXPECT_GE(slot_stride(bytes), sizeof(SlotHeader) + bytes);
    EXPECT_EQ(payload_offset(bytes, bytes), 0u);
    EXPECT_EQ(payload_offset(bytes, 0), header_offset(bytes));
    EXPECT_EQ(payload_offset(bytes, (bytes + 1) / 2) % 64, 0u);
    EXPECT_LE(payload_offset(bytes, bytes / 2) + bytes / 2, header_offset(bytes));
  }
}

}  // namespace
}  // namespace braid::transport::rdma
