#include "comm/share_book.h"

#include <gtest/gtest.h>

#include <numeric>

namespace braid::comm {
namespace {

constexpr uint64_t kAll = ~uint64_t{0};

uint64_t sum(const plan::Shares& shares) {
  return std::accumulate(shares.begin(), shares.end(), uint64_t{0});
}

ShareUpdate update(uint64_t from_epoch, plan::Shares shares) {
  ShareUpdate u;
  u.from_epoch = from_epoch;
  u.has_shares = true;
  u.op = plan::Op::kAllReduce;
  u.size_class = 20;
  u.shares = std::move(shares);
  return u;
}

const plan::Shares kPlanned = {40000, 20000, 5536};

TEST(WithoutLinks, KeepsTheSumAndTheProportions) {
  const plan::Shares left = without_links(kPlanned, ~uint64_t{2});  // without link 1
  EXPECT_EQ(left[1], 0U);
  EXPECT_EQ(sum(left), plan::kWhole);
  EXPECT_NEAR(static_cast<double>(left[0]) / left[2], 40000.0 / 5536, 0.01);
  EXPECT_EQ(without_links(kPlanned, kAll), kPlanned);
}

TEST(WithoutLinks, GivesAllToALinkThatIsUpWhenThePlannedOnesAreNot) {
  const plan::Shares one = {plan::kWhole, 0, 0};
  const plan::Shares left = without_links(one, ~uint64_t{1});
  EXPECT_EQ(sum(left), plan::kWhole);
  EXPECT_EQ(left[0], 0U);
}

TEST(WithoutLinks, LeavesThePlanWhenNothingIsUp) {
  EXPECT_EQ(without_links(kPlanned, 0), kPlanned);
}

TEST(WithoutLinks, EveryMaskKeepsTheSum) {
  const plan::Shares odd = {1, 65533, 1, 1};
  for (uint64_t mask = 0; mask < 16; ++mask)
    EXPECT_EQ(sum(without_links(odd, mask)), plan::kWhole) << mask;
}

TEST(ShareBook, AnUpdateHoldsFromItsEpoch) {
  ShareBook book;
  const plan::Shares later = {10000, 50000, 5536};
  book.learn(update(7, later));
  book.apply_until(6);
  EXPECT_EQ(book.effective(plan::Op::kAllReduce, 20, kPlanned), kPlanned);
  book.apply_until(7);
  EXPECT_EQ(book.effective(plan::Op::kAllReduce, 20, kPlanned), later);
  EXPECT_EQ(book.effective(plan::Op::kAllGather, 20, kPlanned), kPlanned) << "another operation";
  EXPECT_EQ(book.effective(plan::Op::kAllReduce, 21, kPlanned), kPlanned) << "another class";
}

TEST(ShareBook, UpdatesApplyInOrderWhateverOrderTheyCame) {
  ShareBook book;
  const plan::Shares first = {65536, 0, 0}, second = {0, 65536, 0};
  book.learn(update(9, second));
  book.learn(update(8, first));
  book.apply_until(8);
  EXPECT_EQ(book.effective(plan::Op::kAllReduce, 20, kPlanned), first);
  book.apply_until(20);
  EXPECT_EQ(book.effective(plan::Op::kAllReduce, 20, kPlanned), second);
}

// Two links that change in one call give two updates of one key and epoch: the last word counts.
TEST(ShareBook, TheLaterOfOneEpochWins) {
  ShareBook book;
  const plan::Shares first = {65536, 0, 0}, second = {0, 65536, 0};
  book.learn(update(8, first));
  book.learn(update(8, second));
  book.apply_until(8);
  EXPECT_EQ(book.effective(plan::Op::kAllReduce, 20, kPlanned), second);
}

TEST(ShareBook, ALinkThatReturnsFindsItsShare) {
  ShareBook book;
  ShareUpdate down;
  down.from_epoch = 3;
  down.up_mask = ~uint64_t{1};
  book.learn(down);
  book.apply_until(3);
  EXPECT_EQ(book.effective(plan::Op::kBroadcast, 10, kPlanned)[0], 0U);
  ShareUpdate up;
  up.from_epoch = 5;
  book.learn(up);
  book.apply_until(5);
  EXPECT_EQ(book.effective(plan::Op::kBroadcast, 10, kPlanned), kPlanned);
}

TEST(ShareBook, SharesOfAnotherLinkCountAreIgnored) {
  ShareBook book;
  book.learn(update(1, {plan::kWhole / 2, plan::kWhole / 2}));
  book.apply_until(1);
  EXPECT_EQ(book.effective(plan::Op::kAllReduce, 20, kPlanned), kPlanned);
}

}  // namespace
}  // namespace braid::comm
