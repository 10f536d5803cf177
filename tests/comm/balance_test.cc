// What rank 0 makes of the reports of a call: whose word counts, what happens to links that are
// lost, and how many decisions one entry carries.
#include "comm/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/units.h"

namespace braid::comm {
namespace {

constexpr int kRanks = 2;
constexpr int kWindow = 3;
constexpr uint64_t kBothUp = 3, kFirstUp = 1;

plan::Plan plan_of(plan::Op op, uint64_t bytes, plan::Shares shares) {
  plan::Plan plan;
  plan.request = {op, bytes, kRanks};
  plan.shares = std::move(shares);
  return plan;
}

class RunTimeBalanceTest : public testing::Test {
 protected:
  RunTimeBalanceTest() { configure(true); }
  void configure(bool is_on) {
    fabric::Link fast, slow;
    fast.name = "fast";
    slow.name = "slow";
    balance_.configure(is_on, kWindow, {fast, slow}, kRanks);
  }
  /// One call of which every rank reports: half the bytes on each link, the second one takes
  /// `slow_ns`, on the last rank alone.
  void report(const plan::Plan& plan, int64_t slow_ns, int num_reports = kRanks,
              uint64_t up_mask = kBothUp) {
    Observation seen;
    seen.up_mask = up_mask;
    seen.report_plan = plan;
    const uint64_t half = plan.request.bytes / 2;
    for (int r = 0; r < num_reports; ++r)
      seen.reports.push_back(
          {1, {{half, 1'000'000}, {half, r + 1 == num_reports ? slow_ns : 1'000'000}}});
    balance_.observe(seen);
  }
  /// All that was decided: of the last update with shares, those.
  plan::Shares decided() {
    plan::Shares last;
    for (auto taken = balance_.take_updates(7); !taken.empty(); taken = balance_.take_updates(7))
      for (const ShareUpdate& each : taken)
        if (each.has_shares) last = each.shares;
    return last;
  }

  RunTimeBalance balance_;
  const plan::Plan half_ =
      plan_of(plan::Op::kAllGather, 64_MiB, {plan::kWhole / 2, plan::kWhole / 2});
};

TEST_F(RunTimeBalanceTest, TheSlowestRankOfALinkCounts) {
  for (int call = 0; call < kWindow; ++call) report(half_, 2'000'000);
  const plan::Shares shares = decided();
  ASSERT_EQ(shares.size(), 2U);
  EXPECT_GT(shares[0], shares[1]);
  EXPECT_EQ(shares[0] + shares[1], plan::kWhole);
  EXPECT_FALSE(balance_.take_log().empty());
  EXPECT_TRUE(balance_.take_log().empty());
}

TEST_F(RunTimeBalanceTest, ACallThatARankSaysNothingOfIsNotCounted) {
  for (int call = 0; call < 4 * kWindow; ++call) report(half_, 2'000'000, kRanks - 1);
  EXPECT_TRUE(decided().empty());
}

TEST_F(RunTimeBalanceTest, FrozenOrOffItMovesNothing) {
  balance_.freeze(true);
  for (int call = 0; call < 4 * kWindow; ++call) report(half_, 2'000'000);
  EXPECT_TRUE(decided().empty());
  balance_.freeze(false);
  configure(false);
  for (int call = 0; call < 4 * kWindow; ++call) report(half_, 2'000'000);
  EXPECT_TRUE(decided().empty());
}

TEST_F(RunTimeBalanceTest, AReportOfOtherLinksIsNotCounted) {
  Observation seen;
  seen.up_mask = kBothUp;
  seen.report_plan = half_;
  seen.reports = {{1, {{1, 1}, {1, 9}, {1, 9}}}, {1, {{1, 1}, {1, 9}, {1, 9}}}};
  for (int call = 0; call < 4 * kWindow; ++call) balance_.observe(seen);
  EXPECT_TRUE(decided().empty());
}

// Also when shares are not to be moved: a link that some rank cannot use must leave every plan.
TEST_F(RunTimeBalanceTest, ALinkThatIsLostLeavesAndComesBackWithWhatItHad) {
  report(half_, 1'000'000);
  (void)decided();
  balance_.freeze(true);
  report(half_, 1'000'000, kRanks, kFirstUp);
  std::vector<ShareUpdate> lost = balance_.take_updates(7);
  const auto is_lost = [](const ShareUpdate& each) {
    return each.up_mask == kFirstUp && each.from_epoch == 7;
  };
  ASSERT_FALSE(lost.empty());
  EXPECT_TRUE(std::all_of(lost.begin(), lost.end(), is_lost));
  ASSERT_TRUE(lost.back().has_shares);
  EXPECT_EQ(lost.back().shares, (plan::Shares{plan::kWhole, 0}));
  report(half_, 1'000'000, kRanks, kFirstUp);
  EXPECT_TRUE(balance_.take_updates(8).empty()) << "it was lost once";
  report(half_, 1'000'000, kRanks, kBothUp);
  EXPECT_EQ(decided(), half_.shares);
}

// An entry must fit the smallest slot: of more than eight decisions the rest goes with the next.
TEST_F(RunTimeBalanceTest, AnEntryCarriesEightUpdatesInTheirOrder) {
  constexpr int kClasses = 12;
  for (int k = 0; k < kClasses; ++k)
    report(plan_of(plan::Op::kAllGather, 1_MiB << k, half_.shares), 1'000'000);
  (void)decided();
  report(half_, 1'000'000, kRanks, kFirstUp);
  const auto first = balance_.take_updates(20), rest = balance_.take_updates(21);
  ASSERT_EQ(first.size(), 8U);
  ASSERT_EQ(rest.size(), 1U + kClasses - 8U);
  EXPECT_FALSE(first.front().has_shares) << "the links, before any shares";
  EXPECT_EQ(first.back().from_epoch, 20U);
  EXPECT_EQ(rest.front().from_epoch, 21U);
  EXPECT_LT(first.back().size_class, rest.front().size_class);
}

TEST_F(RunTimeBalanceTest, ResetForgetsWhatWasLearned) {
  for (int call = 0; call < kWindow; ++call) report(half_, 2'000'000);
  balance_.reset();
  EXPECT_TRUE(decided().empty());
}

}  // namespace
}  // namespace braid::comm
