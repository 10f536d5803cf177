#include "plan/solve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

namespace braid::plan {
namespace {

LinkCost cost(double latency_ns, double algbw, int resource = -1, double load = 1) {
  return {latency_ns, algbw, resource, load};
}

uint64_t sum(const Shares& shares) {
  return std::accumulate(shares.begin(), shares.end(), uint64_t{0});
}
double fraction(const Split& split, size_t link) {
  return static_cast<double>(split.shares[link]) / kWhole;
}

TEST(ToShares, SumsExactlyAndKeepsProportions) {
  EXPECT_EQ(to_shares(std::vector<double>{4, 2, 1, 1}), (Shares{32768, 16384, 8192, 8192}));
  EXPECT_EQ(to_shares(std::vector<double>{1, 1, 1}), (Shares{21846, 21845, 21845}));
}

TEST(ToShares, IgnoresWhatIsNotAWeight) {
  EXPECT_EQ(to_shares(std::vector<double>{-3, 1, std::nan(""), INFINITY}),
            (Shares{0, kWhole, 0, 0}));
  EXPECT_EQ(to_shares(std::vector<double>{0, 0}), (Shares{kWhole, 0}));
  EXPECT_EQ(sum(to_shares(std::vector<double>{1e308, 1e308, 1e308})), kWhole);
  EXPECT_EQ(sum(to_shares(std::vector<double>{5e-324, 1e308})), kWhole);
}

TEST(ToShares, SumsForRandomWeights) {
  std::mt19937_64 rng(3);
  std::lognormal_distribution<double> weight(0, 3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<double> weights(1 + rng() % 64);
    for (double& w : weights) w = rng() % 5 == 0 ? 0 : weight(rng);
    const Shares shares = to_shares(weights);
    ASSERT_EQ(sum(shares), kWhole);
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t i = 0; i < weights.size() && total > 0; ++i) {
      EXPECT_LT(std::abs(shares[i] - weights[i] / total * kWhole), 1.0 + 1e-6);
    }
  }
}

TEST(Solve, WithoutLatencySharesFollowRates) {
  const Split split =
      solve(64 << 20, std::vector<LinkCost>{cost(0, 0.8), cost(0, 0.4), cost(0, 0.2)});
  EXPECT_NEAR(fraction(split, 0), 4.0 / 7, 1e-4);
  EXPECT_NEAR(fraction(split, 1), 2.0 / 7, 1e-4);
  EXPECT_NEAR(split.best_ns / split.predicted_ns, 1.75, 1e-9);
  EXPECT_EQ(split.best_link, 0);
}

TEST(Solve, WithLatencyAllFinishTogether) {
  const std::vector<LinkCost> links = {cost(10e3, 400), cost(60e3, 50), cost(30e3, 20)};
  const double bytes = 256e6;
  const Split split = solve(bytes, links);
  for (size_t i = 0; i < links.size(); ++i)
    EXPECT_NEAR(links[i].latency_ns + fraction(split, i) * bytes / links[i].algbw_gbps,
                split.predicted_ns, split.predicted_ns * 1e-3);
}

// facts: AR-8 on H200 against 273, slow path 28.6, 100 us apart, 256 MB: 9.3 % gain.
TEST(Solve, ReproducesTheWorkedExample) {
  const Split split = solve(256e6, std::vector<LinkCost>{cost(0, 273), cost(100e3, 28.6)});
  EXPECT_NEAR(split.best_ns / split.predicted_ns - 1, 0.093, 0.002);
}

TEST(Solve, BelowBreakEvenTheFastLinkIsAlone) {
  const LinkCost fast = cost(0, 411);
  const LinkCost slow = cost(60e3, 50);
  const double even = break_even_bytes(fast, slow);
  EXPECT_NEAR(even, 24.66e6, 1e4);
  EXPECT_TRUE(solve(even * 0.9, std::vector<LinkCost>{fast, slow}).is_single());
  EXPECT_FALSE(solve(even * 2, std::vector<LinkCost>{fast, slow}).is_single());
  EXPECT_EQ(break_even_bytes(slow, fast), 0);
}

TEST(Solve, TwoPercentRuleSaysWhy) {
  const Split split = solve(1e9, std::vector<LinkCost>{cost(0, 100), cost(0, 1.5)});
  EXPECT_EQ(split.shares, (Shares{kWhole, 0}));
  EXPECT_NE(split.why.find("1.5 %"), std::string::npos) << split.why;
  EXPECT_DOUBLE_EQ(split.predicted_ns, 1e7);
  EXPECT_FALSE(solve(1e9, std::vector<LinkCost>{cost(0, 100), cost(0, 2.5)}).is_single());
}

TEST(Solve, PartsUnderTheMinimumAreDroppedAndTheRestSolvedAgain) {
  const std::vector<LinkCost> links = {cost(0, 10), cost(0, 5), cost(0, 0.01)};
  const Split split = solve(1e6, links, {4096, 0.02});
  EXPECT_EQ(split.shares[2], 0u);
  EXPECT_NEAR(fraction(split, 0), 2.0 / 3, 1e-4);
}

TEST(Solve, LinksWithoutARateAreLeftOut) {
  EXPECT_EQ(solve(1e6, std::vector<LinkCost>{cost(0, 0), cost(0, 7)}).shares, (Shares{0, kWhole}));
  const Split none = solve(1e6, std::vector<LinkCost>{cost(0, 0), cost(0, NAN)});
  EXPECT_EQ(none.shares, (Shares{kWhole, 0}));
  EXPECT_EQ(none.predicted_ns, 0);
}

TEST(Solve, ZeroBytesTakeTheLowestLatency) {
  EXPECT_EQ(solve(0, std::vector<LinkCost>{cost(9, 100), cost(3, 1)}).shares, (Shares{0, kWhole}));
  EXPECT_TRUE(solve(0, std::vector<LinkCost>{cost(0, 100), cost(0, 1)}).is_single());
}

TEST(Solve, TwoModesOfOneResourceDoNotAddUp) {
  // NVLink, and host path and NIC on the same x16: only the better of the two is used.
  const std::vector<LinkCost> links = {cost(0, 390), cost(0, 40, 0), cost(0, 24, 0)};
  const Split split = solve(1e9, links);
  EXPECT_EQ(split.shares[2], 0u);
  EXPECT_NEAR(fraction(split, 1), 40.0 / 430, 1e-4);
}

TEST(Solve, AResourceWithRoomFeedsBothModes) {
  // x16 of 55, host path 40, NIC 24: the NIC gets the 15 that are left.
  const std::vector<LinkCost> links = {cost(0, 390), cost(0, 40, 0, 40.0 / 55),
                                       cost(0, 24, 0, 24.0 / 55)};
  const Split split = solve(1e9, links);
  EXPECT_NEAR(fraction(split, 1), 40.0 / 445, 1e-3);
  EXPECT_NEAR(fraction(split, 2), 15.0 / 445, 1e-3);
}

TEST(Solve, DroppingOneModeFreesTheResourceForTheOther) {
  // The better mode has too much latency for this size; the other one must get the whole resource.
  const std::vector<LinkCost> links = {cost(0, 100), cost(1e9, 40, 0), cost(0, 20, 0)};
  const Split split = solve(1e8, links);
  EXPECT_EQ(split.shares[1], 0u);
  EXPECT_NEAR(fraction(split, 2), 20.0 / 120, 1e-3);
}

TEST(Solve, RandomLinksNeverDoWorseThanTheBestAloneAndStayDeterministic) {
  std::mt19937_64 rng(11);
  std::lognormal_distribution<double> rate(1, 2);
  std::lognormal_distribution<double> latency(8, 2);
  for (int round = 0; round < 1000; ++round) {
    std::vector<LinkCost> links(1 + rng() % 64);
    for (LinkCost& link : links)
      link = cost(latency(rng), rng() % 6 == 0 ? 0 : rate(rng), static_cast<int>(rng() % 8) - 4);
    const double bytes = std::exp2(static_cast<double>(rng() % 34));
    const Split split = solve(bytes, links);
    ASSERT_EQ(sum(split.shares), kWhole);
    EXPECT_LE(split.predicted_ns, split.best_ns);
    EXPECT_EQ(split.shares, solve(bytes, links).shares);
    for (size_t i = 0; i < links.size(); ++i) {
      if (links[i].algbw_gbps == 0 && split.predicted_ns > 0) {
        EXPECT_EQ(split.shares[i], 0u);
      }
    }
  }
}

TEST(CostsFromFacts, ReadsResourcesByName) {
  std::vector<fabric::Link> links(3);
  links[0] = {.name = "nvlink", .rate_gbps = 390, .latency_ns = 5000, .shares_with = {}};
  links[1] = {.name = "pcie", .rate_gbps = 40, .shares_with = "x16", .resource_gbps = 50};
  links[2] = {.name = "rdma", .rate_gbps = 25, .shares_with = "x16"};
  const std::vector<LinkCost> costs = costs_from_facts({Op::kAllGather, 1 << 20, 2}, links);
  EXPECT_EQ(costs[0].resource, -1);
  EXPECT_EQ(costs[0].latency_ns, 5000);
  EXPECT_EQ(costs[0].algbw_gbps, 780);
  EXPECT_EQ(costs[1].resource, costs[2].resource);
  EXPECT_DOUBLE_EQ(costs[1].load, 0.8);
  EXPECT_DOUBLE_EQ(costs[2].load, 0.5);
}

TEST(CostsFromFacts, AResourceWithoutARateCarriesItsFastestLink) {
  std::vector<fabric::Link> links(2);
  links[0] = {.name = "a", .rate_gbps = 40, .shares_with = "x16"};
  links[1] = {.name = "b", .rate_gbps = 10, .shares_with = "x16"};
  const std::vector<LinkCost> costs = costs_from_facts({Op::kAllGather, 1 << 20, 2}, links);
  EXPECT_DOUBLE_EQ(costs[0].load, 1);
  EXPECT_DOUBLE_EQ(costs[1].load, 0.25);
}

}  // namespace
}  // namespace braid::plan
