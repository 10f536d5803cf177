#include "comm/message_book.h"

#include <gtest/gtest.h>

namespace braid::comm {
namespace {

// What the keeper releases between calls: late copies of messages that are over, and no more.
TEST(MessageBook, TellsLateCopiesFromWhatIsWaitedFor) {
  MessageBook book(2);
  book[1].num_received = 3;
  book[1].num_sent = 5;
  const auto is_late = [&](uint64_t kind, uint64_t number) {
    transport::PieceTag tag;
    tag.words = {9, uint64_t{0x42524449} << 32 | kind, 0, number};
    return is_over(book, 1, tag);
  };
  for (const uint64_t kind : {4U, 6U}) {  // what rank 1 sends
    EXPECT_TRUE(is_late(kind, 2)) << kind;
    EXPECT_FALSE(is_late(kind, 3)) << kind;
  }
  for (const uint64_t kind : {5U, 7U}) {  // what it says of our own
    EXPECT_TRUE(is_late(kind, 4)) << kind;
    EXPECT_FALSE(is_late(kind, 5)) << kind;
  }
  for (const uint64_t kind : {1U, 2U, 3U, 8U}) EXPECT_FALSE(is_late(kind, 0)) << kind;
  book.clear();
  EXPECT_FALSE(is_late(4, 0)) << "no message yet";
}

}  // namespace
}  // namespace braid::comm
