// The queue of a source's orders: their order, and transfers that are dropped out of its midst.
#include "engine/order_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <vector>

namespace braid::engine::test {
namespace {

CopyOrder order(uint64_t transfer, uint64_t mark = 0, bool is_last = false) {
  CopyOrder out;
  out.pull.transfer = transfer;
  out.pull.is_last = is_last;
  out.mark = mark;
  return out;
}

/// The transfers of all orders that come to the front, in turn.
std::vector<uint64_t> served(OrderQueue& queue) {
  std::vector<uint64_t> out;
  for (; !queue.is_empty(); queue.pop_front()) out.push_back(queue.at(0).pull.transfer);
  return out;
}

TEST(OrderQueue, ServesInTheOrderOfArrival) {
  OrderQueue queue;
  for (const uint64_t transfer : {7, 3, 7, 5, 3}) queue.push(order(transfer));
  EXPECT_EQ(served(queue), (std::vector<uint64_t>{7, 3, 7, 5, 3}));
}

TEST(OrderQueue, LetsSomeBeUnderWayAtOnce) {
  OrderQueue queue;
  EXPECT_EQ(queue.num_first(), 0u);
  for (uint64_t i = 0; i < 20; ++i) queue.push(order(i));
  EXPECT_EQ(queue.num_first(), OrderQueue::kMostUnderWay);
  for (size_t i = 0; i < queue.num_first(); ++i) EXPECT_EQ(queue.at(i).pull.transfer, i);
}

TEST(OrderQueue, PassesOverADroppedTransferWhereverItsOrdersAre) {
  OrderQueue queue;
  for (uint64_t i = 0; i < 40; ++i) queue.push(order(i % 4));
  EXPECT_EQ(queue.drop(2), 0u);
  EXPECT_EQ(queue.num_waiting(), 30u);
  for (size_t i = 0; i < queue.num_first(); ++i) EXPECT_NE(queue.at(i).pull.transfer, 2u);
  EXPECT_EQ(queue.drop(2), 0u) << "a second time";
  const std::vector<uint64_t> found = served(queue);
  ASSERT_EQ(found.size(), 30u);
  constexpr std::array<uint64_t, 3> kLeft = {0, 1, 3};
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], kLeft[i % 3]) << i;
  EXPECT_EQ(queue.num_waiting(), 0u);
}

TEST(OrderQueue, DropsAllOfOneTransferThatIsAlone) {
  OrderQueue queue;
  for (int i = 0; i < 30; ++i) queue.push(order(9));
  (void)queue.drop(9);
  EXPECT_TRUE(queue.is_empty());
  queue.push(order(9));  // a new transfer may have the number
  EXPECT_EQ(served(queue), std::vector<uint64_t>{9});
}

TEST(OrderQueue, PassesOverOrdersThatComeBehindTheDrop) {
  OrderQueue queue;
  for (uint64_t i = 0; i < 12; ++i) queue.push(order(i));
  queue.push(order(50));
  (void)queue.drop(50);
  queue.push(order(50));
  queue.push(order(51));
  EXPECT_EQ(queue.num_waiting(), 13u);
  std::vector<uint64_t> expected(12);
  for (uint64_t i = 0; i < 12; ++i) expected[i] = i;
  expected.push_back(51);
  EXPECT_EQ(served(queue), expected);
}

TEST(OrderQueue, ADropTellsOfTheLastCopyThatAGpuHasBegun) {
  OrderQueue queue;
  EXPECT_FALSE(queue.has_mark());
  queue.push(order(1, 11));
  queue.push(order(2, 14));
  queue.push(order(1, 13));
  queue.push(order(1));
  EXPECT_TRUE(queue.has_mark());
  EXPECT_EQ(queue.drop(1), 13u);
  EXPECT_EQ(queue.drop(2), 14u);
  EXPECT_FALSE(queue.has_mark());
}

TEST(OrderQueue, ATransferIsWholeWithItsLastOrder) {
  OrderQueue queue;
  EXPECT_FALSE(queue.is_whole(4));
  queue.push(order(4));
  queue.push(order(5, 0, true));
  EXPECT_FALSE(queue.is_whole(4));
  EXPECT_TRUE(queue.is_whole(5));
  queue.push(order(4, 0, true));
  EXPECT_TRUE(queue.is_whole(4));
  queue.pop_front();
  EXPECT_TRUE(queue.is_whole(4)) << "one of its orders is left";
  queue.pop_front();
  queue.pop_front();
  EXPECT_FALSE(queue.is_whole(4));
}

TEST(OrderQueue, SlotsOfDroppedOrdersAreFree) {
  OrderQueue queue;
  Gpu::Slot dropped, cleared;
  for (Gpu::Slot* slot : {&dropped, &cleared}) {
    slot->is_held = true;
    CopyOrder one = order(slot == &dropped ? 1 : 2);
    one.filled_slots.push_back({slot, 1, {}});
    queue.push(std::move(one));
  }
  (void)queue.drop(1);
  EXPECT_FALSE(dropped.is_held);
  EXPECT_TRUE(cleared.is_held);
  queue.clear();
  EXPECT_FALSE(cleared.is_held);
  EXPECT_TRUE(queue.is_empty());
  EXPECT_EQ(queue.num_waiting(), 0u);
}

}  // namespace
}  // namespace braid::engine::test
