#include "transport/nvlink/handover_note.h"

#include <gtest/gtest.h>

#include <string>

namespace braid::nvlink {
namespace {

TEST(HandoverNote, ReadsBack) {
  const auto note = decode_note(encode({2, 16, 8, ""}), 0, 4);
  ASSERT_TRUE(note.ok()) << note.status().to_string();
  EXPECT_EQ(note->rank, 2);
  EXPECT_EQ(note->first, 16U);
  EXPECT_EQ(note->count, 8U);
  EXPECT_EQ(decode_note(encode({1, 0, 0, "no memory is left"}), 0, 4)->why, "no memory is left");
}

// A letter is of at most so many bytes, and its words may be anybody's.
TEST(HandoverNote, WordsAreCutAndMadePrintable) {
  EXPECT_LE(encode({1, 0, 0, std::string(1000, 'x')}).size(), 256U);
  EXPECT_EQ(decode_note("1 0 0 a\x1b[31mb", 0, 4)->why, "a?[31mb");
}

TEST(HandoverNote, RefusesWhatIsNone) {
  for (const char* text : {"", "1", "1 2", "x 0 1", "4 0 1", "-1 0 1", "0 0 1", "1 -", "1 0 x"})
    EXPECT_FALSE(decode_note(text, 0, 4).ok()) << text;
}

}  // namespace
}  // namespace braid::nvlink
