#include "comm/observe/members.h"

#include <gtest/gtest.h>

namespace braid::comm {
namespace {

TEST(Members, AreNamedByTheFirstOnesCount) {
  EXPECT_EQ(members_of({"0 2", "4 7"}).name, "comm2");
  EXPECT_EQ(members_of({"0 2", "4 7"}).job_ranks, (std::vector<int>{0, 4}));
  EXPECT_EQ(members_of({"5 0"}).name, "comm0@5");
  EXPECT_NE(members_of({"1 23"}).name, members_of({"12 3"}).name);
}

// Whatever a peer says, there is a name and a rank for each.
TEST(Members, MayTellNonsense) {
  EXPECT_EQ(members_of({"", "x", "3", "4 ", "99999999999 1"}).job_ranks,
            (std::vector<int>{-1, -1, 3, 4, -1}));
  EXPECT_FALSE(members_of({"x"}).name.empty());
  EXPECT_FALSE(members_of({}).name.empty());
}

// Whom no launcher gave a rank keeps that of the first comm, unless ranks are threads, or two have
// come from comms in which they had one.
TEST(Members, SettleTheirRanksOnce) {
  EXPECT_TRUE(is_to_settle({"0 0 a", "1 0 b"}, -1));
  EXPECT_FALSE(is_to_settle({"0 1 a", "1 1 b"}, 1));
  EXPECT_FALSE(is_to_settle({"0 0 a", "1 0 a"}, -1));
  EXPECT_FALSE(is_to_settle({"0 0 a"}, -1));
  EXPECT_TRUE(is_to_settle({"0 1 a", "0 0 b"}, 0));
}

TEST(Members, EachCommOfAProcessHasItsNumber) {
  const Members first = members_of({introduction(903)}), second = members_of({introduction(903)});
  EXPECT_NE(first.name, second.name);
  EXPECT_EQ(first.job_ranks, second.job_ranks);
}

}  // namespace
}  // namespace braid::comm
