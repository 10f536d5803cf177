#include "base/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Trim, TakesSpacesAndTabsFromBothEnds) {
  EXPECT_EQ(trim(" \t a b\t "), "a b");
  EXPECT_EQ(trim("a"), "a");
  EXPECT_EQ(trim(" \t "), "");
  EXPECT_EQ(trim(""), "");
}

TEST(Split, KeepsEmptyFieldsAndTrimsTheRest) {
  EXPECT_THAT(split("shm, staged ,rdma", ','), ElementsAre("shm", "staged", "rdma"));
  EXPECT_THAT(split("a,,b,", ','), ElementsAre("a", "", "b", ""));
  EXPECT_THAT(split("one", ','), ElementsAre("one"));
  EXPECT_THAT(split("  ", ','), IsEmpty());
}

TEST(Printable, HidesControlBytesSoThatALineStaysOneLine) {
  EXPECT_EQ(printable("a\nb\x1b[31m\xff"), "a?b?[31m?");
  EXPECT_EQ(printable(std::string_view("x\0y", 3)), "x?y");
}

TEST(Printable, CutsLongText) {
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable(std::string(1000, 'x')).size(), 67u);
}

TEST(ValidUtf8, KeepsWhatIsWellFormed) {
  for (const char* text : {"", "abc",
                           "pr\xc3\xa9"
                           "fill",
                           "\xe4\xb8\xad", "\xf0\x9f\xa7\xb5", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"})
    EXPECT_EQ(valid_utf8(text), text);
  EXPECT_EQ(valid_utf8(std::string_view("a\0b", 3)), std::string_view("a\0b", 3));
}

TEST(ValidUtf8, ReplacesEveryByteOfWhatIsNot) {
  EXPECT_EQ(valid_utf8("f\xfc"
                       "r"),
            "f?r");                    // Latin-1
  EXPECT_EQ(valid_utf8("\xc3"), "?");  // cut
  EXPECT_EQ(valid_utf8("\xe4\xb8"
                       "a"),
            "??a");
  EXPECT_EQ(valid_utf8("\xc0\xaf"), "??");  // overlong
  EXPECT_EQ(valid_utf8("\xe0\x80\xaf"), "???");
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), "???");       // a surrogate
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80"), "????");  // above U+10FFFF
  EXPECT_EQ(valid_utf8("\xff\xfe\x80"), "???");
}

TEST(EditDistance, CountsInsertedRemovedAndReplacedCharacters) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("timeout", "timeout"), 0u);
  EXPECT_EQ(edit_distance("timout", "timeout"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("sitting", "kitten"), 3u);
}

}  // namespace
}  // namespace braid
