#include "comm/node_group.h"

#include <gtest/gtest.h>

#include "support/thread_group.h"

namespace braid::comm {
namespace {

// Node 0 has three exchanges, node 1 one, and a rank of node 2 gives up before its first.
TEST(NodeGroup, BehindFinishAllAreAtTheSameExchange) {
  const fabric::NodeMap map{3, 2};
  test::run_thread_ranks(map.size(), [&](group::Group& whole) {
    NodeGroup node(whole, map);
    const int of_node = map.node_of(whole.rank());
    const int wanted = of_node == 0 ? 3 : of_node == 1 ? 1 : whole.rank() == 4 ? 0 : 2;
    for (int i = 0; i < wanted; ++i) {
      const auto told =
          node.exchange("step", std::to_string(10 * of_node + i), test::test_deadline());
      if (of_node == 2) {
        EXPECT_EQ(told.status().code(), Code::kUnavailable) << "its peer has given up";
      } else {
        ASSERT_TRUE(told.ok()) << told.status().to_string();
        const std::string mine = std::to_string(10 * of_node + i);
        EXPECT_EQ(told.value(), (std::vector<std::string>{mine, mine}));
      }
    }
    const Status finished = node.finish(test::test_deadline());
    EXPECT_TRUE(finished.ok()) << finished.to_string();
    const auto next = whole.exchange("next", "", test::test_deadline());
    EXPECT_TRUE(next.ok()) << next.status().to_string();
  });
}

// With as many everywhere, and with none, it is one exchange more.
TEST(NodeGroup, FinishIsTheEndOfItsExchangesAlone) {
  const fabric::NodeMap map{2, 2};
  test::run_thread_ranks(map.size(), [&](group::Group& whole) {
    NodeGroup node(whole, map);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(node.finish(test::test_deadline()).ok());
      EXPECT_TRUE(node.barrier("again", test::test_deadline()).ok());
      EXPECT_TRUE(node.finish(test::test_deadline()).ok());
    }
  });
}

TEST(NodeGroup, WhoIsMissingIsAnErrorAtTheDeadline) {
  const fabric::NodeMap map{2, 2};
  test::run_thread_ranks(map.size(), [&](group::Group& whole) {
    if (whole.rank() == 3) return;
    NodeGroup node(whole, map);
    EXPECT_EQ(node.finish(Deadline::after_ns(50'000'000)).code(), Code::kTimeout);
  });
}

}  // namespace
}  // namespace braid::comm
