#include "plan/rates.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace braid::plan {
namespace {

RateCurve curve_of(std::initializer_list<RatePoint> points) {
  RateCurve curve;
  for (const RatePoint& p : points) EXPECT_TRUE(curve.add(p));
  return curve;
}

// Points of a real-looking link: latency plus bytes over rate.
RateCurve linear_curve(double latency_ns, double gbps) {
  RateCurve curve;
  for (uint64_t bytes = 4096; bytes <= (uint64_t{1} << 30); bytes *= 4)
    curve.add({bytes, latency_ns + static_cast<double>(bytes) / gbps});
  return curve;
}

TEST(RateCurve, HitsItsPointsAndInterpolatesLogLog) {
  const RateCurve curve = curve_of({{1000, 100}, {4000, 400}, {16000, 3200}});
  EXPECT_NEAR(curve.time_ns(1000, 0), 100, 1e-6);
  EXPECT_NEAR(curve.time_ns(4000, 0), 400, 1e-6);
  EXPECT_NEAR(curve.time_ns(16000, 0), 3200, 1e-6);
  EXPECT_NEAR(curve.time_ns(2000, 0), 200, 1e-6);
  EXPECT_NEAR(curve.time_ns(8000, 0), 400 * std::sqrt(8.0), 1e-6);
}

TEST(RateCurve, OutsideItsPointsItIsALineThroughTheLatency) {
  const RateCurve curve = curve_of({{1000, 100}, {2000, 150}});
  EXPECT_NEAR(curve.time_ns(0, 40), 40, 1e-9);
  EXPECT_NEAR(curve.time_ns(500, 40), 70, 1e-9);
  EXPECT_NEAR(curve.time_ns(4000, 50), 250, 1e-9);
  EXPECT_NEAR(curve.time_ns(0, 1e9), 100, 1e-9) << "a latency above the first point is cut to it";
}

TEST(RateCurve, RefusesPointsThatSayNothing) {
  RateCurve curve;
  EXPECT_FALSE(curve.add({0, 5}));
  EXPECT_FALSE(curve.add({10, 0}));
  EXPECT_FALSE(curve.add({10, -1}));
  EXPECT_FALSE(curve.add({10, NAN}));
  EXPECT_FALSE(curve.add({10, INFINITY}));
  EXPECT_TRUE(curve.empty());
}

TEST(RateCurve, ASecondPointOfOneSizeReplacesTheFirst) {
  const RateCurve curve = curve_of({{1000, 100}, {1000, 300}});
  ASSERT_EQ(curve.points().size(), 1u);
  EXPECT_NEAR(curve.time_ns(1000, 0), 300, 1e-9);
}

TEST(RateCurve, IsMonotoneThroughNoise) {
  const RateCurve curve = curve_of({{1000, 500}, {2000, 300}, {4000, 450}, {8000, 900}});
  double before = 0;
  for (double bytes = 1; bytes < 20000; bytes *= 1.05) {
    const double ns = curve.time_ns(bytes, 10);
    EXPECT_GE(ns, before - 1e-9) << bytes;
    before = ns;
  }
  EXPECT_NEAR(curve.time_ns(3000, 0), 500, 1e-9) << "a faster larger part is noise";
}

TEST(RateCurve, NamesThePointsThatNoLinkCanHave) {
  RateCurve curve;
  for (const RatePoint point : {RatePoint{64 << 10, 5e4}, RatePoint{256 << 10, 2.548e6},
                                RatePoint{1 << 20, 9e5}, RatePoint{16 << 20, 1.1e6}})
    ASSERT_TRUE(curve.add(point));
  EXPECT_EQ(curve.slower_below({4 << 20, 1.116e6}), (std::vector<RatePoint>{{256 << 10, 2.548e6}}));
  EXPECT_EQ(curve.slower_below({4 << 20, 8e5}),
            (std::vector<RatePoint>{{256 << 10, 2.548e6}, {1 << 20, 9e5}}));
  EXPECT_TRUE(curve.slower_below({256 << 10, 1}).size() == 1);
  EXPECT_TRUE(curve.slower_below({64 << 10, 1}).empty());
  EXPECT_TRUE(curve.slower_below({1 << 30, 3e6}).empty());
}

TEST(RateCurve, TangentTouchesTheCurve) {
  const RateCurve curve = curve_of({{1000, 100}, {4000, 200}, {64000, 2500}});
  for (const double bytes : {100.0, 1500.0, 3000.0, 30000.0, 1e6}) {
    const LinkCost line = curve.tangent(bytes, 20);
    const double ns = curve.time_ns(bytes, 20);
    EXPECT_NEAR(line.latency_ns + bytes / line.algbw_gbps, ns, ns * 1e-6) << bytes;
    const double step = bytes * 1e-4;
    const double slope =
        (curve.time_ns(bytes + step, 20) - curve.time_ns(bytes - step, 20)) / (2 * step);
    EXPECT_NEAR(1 / line.algbw_gbps, slope, slope * 1e-3) << bytes;
  }
}

TEST(RateCurve, AFlatCurveClaimsNoInfiniteRate) {
  const RateCurve curve = curve_of({{1000, 100}, {2000, 100}});
  EXPECT_TRUE(std::isfinite(curve.tangent(1500, 0).algbw_gbps));
  EXPECT_TRUE(std::isfinite(curve.tangent(500, 1000).algbw_gbps));
}

TEST(RateTable, KeepsCurvesPerOperationRanksAndLink) {
  RateTable table;
  EXPECT_TRUE(table.add(Op::kAllGather, 4, 2, {1000, 10}));
  EXPECT_EQ(table.curve(Op::kAllGather, 4, 0), nullptr);
  EXPECT_NE(table.curve(Op::kAllGather, 4, 2), nullptr);
  EXPECT_EQ(table.curve(Op::kAllGather, 4, 9), nullptr);
  EXPECT_EQ(table.curve(Op::kAllGather, 8, 2), nullptr);
  EXPECT_EQ(table.curve(Op::kAllReduce, 4, 2), nullptr);
}

TEST(SolveMeasured, EqualsTheClosedFormOnLinearLinks) {
  const std::vector<LinkCost> facts = {{5e3, 400, -1, 1}, {60e3, 40, -1, 1}};
  const RateCurve fast = linear_curve(5e3, 400);
  const RateCurve slow = linear_curve(60e3, 40);
  const std::vector<const RateCurve*> curves = {&fast, &slow};
  for (const double bytes : {64e6, 256e6, 1e9}) {
    const Split by_curve = solve_measured(bytes, facts, curves);
    const Split by_line = solve(bytes, facts);
    EXPECT_NEAR(by_curve.shares[0], by_line.shares[0], 0.01 * kWhole) << bytes;
    EXPECT_NEAR(by_curve.predicted_ns, by_line.predicted_ns, 0.02 * by_line.predicted_ns) << bytes;
  }
}

TEST(SolveMeasured, BelievesPointsOverFacts) {
  const std::vector<LinkCost> facts = {{0, 100, -1, 1}, {0, 100, -1, 1}};
  const RateCurve third = linear_curve(0, 50);
  const std::vector<const RateCurve*> curves = {nullptr, &third};
  const Split split = solve_measured(1e8, facts, curves);
  EXPECT_NEAR(split.shares[0], kWhole * 2.0 / 3, 0.01 * kWhole);
}

// The slow link's rate collapses above 8 MB (a window that leaves the cache): it must get about
// that, not more.
TEST(SolveMeasured, FollowsARateThatFallsWithSize) {
  const std::vector<LinkCost> facts = {{0, 100, -1, 1}, {0, 40, -1, 1}};
  RateCurve cliff;
  for (const double mb : {1.0, 2.0, 4.0, 8.0})
    cliff.add({static_cast<uint64_t>(mb * 1e6), mb * 1e6 / 40});
  for (const double mb : {16.0, 32.0, 64.0})
    cliff.add({static_cast<uint64_t>(mb * 1e6), mb * 1e6 / 8});
  const RateCurve fast = linear_curve(0, 100);
  const std::vector<const RateCurve*> curves = {&fast, &cliff};
  const double bytes = 100e6;
  const Split split = solve_measured(bytes, facts, curves);
  const double part = bytes * split.shares[1] / kWhole;
  const double finish_fast = fast.time_ns(bytes - part, 0);
  const double finish_slow = cliff.time_ns(part, 0);
  EXPECT_NEAR(finish_fast, finish_slow, 0.03 * finish_fast);
  EXPECT_GT(part, 8e6);
  EXPECT_LT(part, 16e6);
}

TEST(SolveMeasured, WithoutAnyKnowledgeTheFirstLinkCarriesAll) {
  const std::vector<LinkCost> facts = {{0, 0, -1, 1}, {0, 0, -1, 1}};
  const std::vector<const RateCurve*> curves = {nullptr, nullptr};
  EXPECT_EQ(solve_measured(1e6, facts, curves).shares, (Shares{kWhole, 0}));
}

TEST(SolveMeasured, ACurveMakesALinkWithoutFactsUsable) {
  const std::vector<LinkCost> facts = {{0, 0, -1, 1}, {0, 0, -1, 1}};
  const RateCurve a = linear_curve(0, 30);
  const RateCurve b = linear_curve(0, 10);
  const std::vector<const RateCurve*> curves = {&a, &b};
  EXPECT_NEAR(solve_measured(1e8, facts, curves).shares[0], 0.75 * kWhole, 0.01 * kWhole);
}

}  // namespace
}  // namespace braid::plan
