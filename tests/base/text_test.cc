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
