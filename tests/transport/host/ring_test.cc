// The ring by itself: both ends on one block of plain memory, so that ThreadSanitizer sees the
// protocol and a test can scribble where a broken peer would.
#include "transport/host/ring.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <thread>

#include "support/lane_ends.h"

namespace braid::transport {
namespace {

struct FreeDeleter {
  void operator()(std::byte* p) const { std::free(p); }
};

class RingTest : public ::testing::Test {
 protected:
  static constexpr RingLayout kRing{.depth = 3};
  static constexpr RoomLayout kRooms{.num_rooms = 3, .room_bytes = 100};

  RingTest()
      : memory_(static_cast<std::byte*>(
            std::aligned_alloc(kLineBytes, kRing.bytes() + kRooms.bytes()))),
        rooms_{kRooms, memory_.get() + kRing.bytes()},
        writer_((std::memset(memory_.get(), 0, kRing.bytes() + kRooms.bytes()), memory_.get()),
                kRing, rooms_),
        reader_(memory_.get(), kRing, rooms_) {}

  void put(uint64_t number, size_t bytes) {
    const std::vector<std::byte> piece = test::make_piece(0, number, bytes);
    const uint32_t room = writer_.next_slot();
    if (bytes > 0) std::memcpy(rooms_.at(room), piece.data(), bytes);
    writer_.publish(test::make_tag(0, number, bytes), static_cast<uint32_t>(bytes), room);
  }
  Status poll_acks() {
    return writer_.poll_acks([](uint32_t) {});
  }
  SlotHeader& header(uint32_t slot) {
    return reinterpret_cast<SlotHeader*>(memory_.get() + RingLayout::headers_offset())[slot];
  }
  RingAck& ack() { return *reinterpret_cast<RingAck*>(memory_.get()); }

  std::unique_ptr<std::byte, FreeDeleter> memory_;
  Rooms rooms_;
  RingWriter writer_;
  RingReader reader_;
};

TEST_F(RingTest, LayoutsLeaveNoLineShared) {
  EXPECT_EQ(RingLayout{.depth = 7}.bytes(), 64 + 7 * 64U);
  EXPECT_EQ(RoomLayout({.num_rooms = 2, .room_bytes = 64}).stride(), 128U);
  EXPECT_EQ(RoomLayout({.num_rooms = 2, .room_bytes = 65}).bytes(), 2 * 192U);
  EXPECT_EQ(RoomLayout({.num_rooms = 2, .room_bytes = 1}).stride() % kLineBytes, 0U);
}

TEST_F(RingTest, PiecesPassInOrderAcrossManyLaps) {
  for (uint64_t number = 0; number < 20; ++number) {
    put(number, number);
    ASSERT_TRUE(reader_.poll().ok());
    ASSERT_EQ(reader_.available(), 1U);
    EXPECT_TRUE(test::is_piece(reader_.at(0), 0, number, number));
    reader_.release(1);
    ASSERT_TRUE(poll_acks().ok());
    EXPECT_EQ(writer_.acked(), number + 1);
  }
}

TEST_F(RingTest, FullUntilReleaseIsRead) {
  for (uint64_t number = 0; number < 3; ++number) put(number, 10);
  EXPECT_TRUE(writer_.is_full());
  ASSERT_TRUE(reader_.poll().ok());
  EXPECT_EQ(reader_.available(), 3U);
  reader_.release(2);
  EXPECT_TRUE(writer_.is_full()) << "the writer has not looked yet";
  std::vector<uint32_t> freed;
  ASSERT_TRUE(writer_.poll_acks([&](uint32_t room) { freed.push_back(room); }).ok());
  EXPECT_EQ(freed, (std::vector<uint32_t>{0, 1}));
  EXPECT_FALSE(writer_.is_full());
}

TEST_F(RingTest, PollOfAFullRingSeesNoNewPiece) {
  for (uint64_t number = 0; number < 3; ++number) put(number, 10);
  ASSERT_TRUE(reader_.poll().ok());
  ASSERT_TRUE(reader_.poll().ok());
  EXPECT_EQ(reader_.available(), 3U);
}

TEST_F(RingTest, ScribbledStampIsNamed) {
  put(0, 10);
  header(0).stamp.store(77);
  const Status status = reader_.poll();
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.message().find("stamp 77, expected 1"), std::string::npos) << status.to_string();
  EXPECT_EQ(reader_.available(), 0U);
}

TEST_F(RingTest, ScribbledLengthIsNeverRead) {
  put(0, 10);
  header(0).bytes = 101;
  const Status status = reader_.poll();
  EXPECT_NE(status.message().find("says 101 bytes, a room has 100"), std::string::npos)
      << status.to_string();
  EXPECT_EQ(reader_.available(), 0U);
}

TEST_F(RingTest, ScribbledRoomIsNeverRead) {
  put(0, 10);
  header(0).room = 3;
  const Status status = reader_.poll();
  EXPECT_NE(status.message().find("names room 3 of 3"), std::string::npos) << status.to_string();
}

TEST_F(RingTest, HeaderThatChangesAfterTheCheckChangesNothing) {
  put(0, 10);
  ASSERT_TRUE(reader_.poll().ok());
  header(0).bytes = 1 << 30;
  header(0).room = 1 << 30;
  EXPECT_TRUE(test::is_piece(reader_.at(0), 0, 0, 10));
}

TEST_F(RingTest, AckBeyondWhatWasPostedIsNamed) {
  put(0, 10);
  ack().released.store(2);
  const Status status = poll_acks();
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.message().find("released 2 pieces, last time 0, posted 1"), std::string::npos);
  EXPECT_EQ(writer_.acked(), 0U);
}

TEST_F(RingTest, AckThatGoesBackIsNamed) {
  put(0, 10);
  ASSERT_TRUE(reader_.poll().ok());
  reader_.release(1);
  ASSERT_TRUE(poll_acks().ok());
  ack().released.store(0);
  EXPECT_EQ(poll_acks().code(), Code::kInternal);
}

TEST_F(RingTest, UnackedPiecesComeFromTheWritersOwnMemory) {
  put(0, 10);
  put(1, 20);
  header(0).bytes = 1 << 30;
  header(1).tag = {};
  EXPECT_TRUE(test::is_piece(writer_.unacked(0), 0, 0, 10));
  EXPECT_TRUE(test::is_piece(writer_.unacked(1), 0, 1, 20));
}

TEST_F(RingTest, TwoThreadsPassTwentyThousandPieces) {
  constexpr uint64_t kCount = 20'000;
  std::thread sender([this] {
    for (uint64_t number = 0; number < kCount;) {
      EXPECT_TRUE(poll_acks().ok());
      if (writer_.is_full())
        std::this_thread::yield();
      else
        put(number, number % 101), ++number;
    }
  });
  for (uint64_t number = 0; number < kCount;) {
    EXPECT_TRUE(reader_.poll().ok());
    const uint32_t there = reader_.available();
    for (uint32_t i = 0; i < there; ++i, ++number)
      EXPECT_TRUE(test::is_piece(reader_.at(i), 0, number, number % 101));
    reader_.release(there);
    if (there == 0) std::this_thread::yield();
  }
  sender.join();
}

}  // namespace
}  // namespace braid::transport
