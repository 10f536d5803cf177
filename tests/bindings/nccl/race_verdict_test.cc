#include "bindings/nccl/core/race_verdict.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace braid::nccl {
namespace {

std::vector<LapTimes> laps_of(size_t num, double nccl_us, double braid_us) {
  return std::vector<LapTimes>(num, {nccl_us, braid_us});
}

TEST(Verdict, ACleanRaceIsSoonOver) {
  EXPECT_EQ(judge({}, kLeastGain), Verdict::kOpen);
  EXPECT_EQ(judge(laps_of(11, 15, 10), kLeastGain), Verdict::kOpen) << "too few";
  EXPECT_EQ(judge(laps_of(12, 15, 10), kLeastGain), Verdict::kBraid);
  EXPECT_EQ(judge(laps_of(6, 5, 10), kLeastGain), Verdict::kOpen);
  EXPECT_EQ(judge(laps_of(7, 5, 10), kLeastGain), Verdict::kNccl);
}

TEST(Verdict, LessThanThreePercentIsNoWin) {
  for (const double ratio : {0.97, 1.0, 1.02, 1.0299})
    EXPECT_EQ(judge(laps_of(7, 100 * ratio, 100), kLeastGain), Verdict::kNccl) << ratio;
  EXPECT_EQ(judge(laps_of(12, 103.01, 100), kLeastGain), Verdict::kBraid);
}

TEST(Verdict, LapsThatWereHeldUpCountAsOneEach) {
  std::vector<LapTimes> laps = laps_of(9, 100, 100);
  laps[3].nccl_us = 1e9;
  EXPECT_EQ(judge(laps, kLeastGain), Verdict::kNccl);
  laps = laps_of(14, 150, 100);
  laps[3].braid_us = 1e9;
  EXPECT_EQ(judge(laps, kLeastGain), Verdict::kBraid);
}

TEST(Verdict, WhatIsTooCloseIsNccls) {
  std::vector<LapTimes> laps;
  for (size_t i = 0; i < 41; ++i) {
    EXPECT_EQ(judge(laps, kLeastGain), Verdict::kOpen) << i;
    laps.push_back({i % 2 == 0 ? 140.0 : 90.0, 100});
  }
  EXPECT_EQ(judge(laps, kLeastGain), Verdict::kNccl)
      << "a median of 1.4, and nearly half of the laps lost";
}

Verdict of_singles(const std::vector<LapTimes>& laps) { return judge_singles(laps, 1.05); }

TEST(SinglesVerdict, ACleanRace) {
  EXPECT_EQ(of_singles({}), Verdict::kOpen);
  EXPECT_EQ(of_singles(laps_of(6, 5, 10)), Verdict::kOpen);
  EXPECT_EQ(of_singles(laps_of(7, 5, 10)), Verdict::kNccl);
  EXPECT_EQ(of_singles(laps_of(kSingleLaps - 1, 15, 10)), Verdict::kOpen) << "no sooner";
  EXPECT_EQ(of_singles(laps_of(kSingleLaps, 15, 10)), Verdict::kBraid);
  EXPECT_EQ(of_singles(laps_of(kSingleLaps, 105.1, 100)), Verdict::kBraid);
  EXPECT_EQ(of_singles(laps_of(kSingleLaps, 104.9, 100)), Verdict::kNccl);
}

TEST(RestedVerdict, NineOfTwelve) {
  const auto of_rested = [](size_t won, size_t lost) {
    std::vector<LapTimes> laps = laps_of(won, 15, 10);
    const std::vector<LapTimes> others = laps_of(lost, 10.4, 10);
    laps.insert(laps.end(), others.begin(), others.end());
    return judge_rested(laps, 1.05);
  };
  EXPECT_EQ(of_rested(0, 0), Verdict::kOpen);
  EXPECT_EQ(of_rested(8, 3), Verdict::kOpen);
  EXPECT_EQ(of_rested(9, 0), Verdict::kBraid);
  EXPECT_EQ(of_rested(9, 3), Verdict::kBraid);
  EXPECT_EQ(of_rested(0, 4), Verdict::kNccl);
  EXPECT_EQ(of_rested(8, 4), Verdict::kNccl);
}

// Four H200 as two nodes, an all_gather of 1 MiB: ten samples took 590 us where NCCL took 880, two 2,732 and 3,214.
TEST(RestedVerdict, FewSlowLapsThatCostMoreThanTheOthersSaveAreNccls) {
  std::vector<LapTimes> laps = laps_of(10, 880, 590);
  laps.insert(laps.begin(), {{880, 2732}});
  EXPECT_EQ(judge_rested(laps, 1.05), Verdict::kBraid);
  laps.insert(laps.begin(), {{880, 3214}});
  EXPECT_EQ(judge_rested(laps, 1.05), Verdict::kNccl);
}

TEST(SinglesVerdict, TwoKindsAreJudgedByWhatTheyCost) {
  std::vector<LapTimes> laps = laps_of(kSingleLaps, 2200, 800);
  for (size_t i = 0; i < 3; ++i) laps[8 * i].braid_us = 5000;
  EXPECT_EQ(of_singles(laps), Verdict::kBraid) << "one of eight: 1.67 times as fast in the mean";
  laps[1].braid_us = laps[9].braid_us = laps[17].braid_us = 5000;
  EXPECT_EQ(of_singles(laps), Verdict::kNccl) << "a quarter: 1.19, which may be luck";
  EXPECT_GT(median_ratio(laps), 2.7);
}

TEST(SinglesVerdict, OneLapOfNcclsThatWasHeldUpIsNoWin) {
  std::vector<LapTimes> laps = laps_of(kSingleLaps, 100, 100);
  laps[3].nccl_us = 1e6;
  EXPECT_EQ(of_singles(laps), Verdict::kNccl);
}

TEST(Verdict, MedianRatio) {
  EXPECT_EQ(median_ratio({}), 0);
  EXPECT_DOUBLE_EQ(median_ratio(std::vector<LapTimes>{{10, 10}, {30, 10}}), 2);
  EXPECT_DOUBLE_EQ(median_ratio(std::vector<LapTimes>{{90, 10}, {10, 10}, {20, 10}}), 2);
}

TEST(Slowest, IsTheLargestOfEach) {
  const auto slowest = slowest_of(std::vector<LapTimes>{{100, 90}, {105, 80}, {99, 91}}, {});
  ASSERT_TRUE(slowest);
  EXPECT_EQ(slowest->nccl_us, 105);
  EXPECT_EQ(slowest->braid_us, 91);
}

TEST(Slowest, ARankThatContradictsTheOthersSpoilsTheLap) {
  const Agreement strict{1.5, 10};
  for (const double lie : {0.0, -5.0, 1.0, 300.0, 1e9, std::nan("")}) {
    EXPECT_FALSE(slowest_of(std::vector<LapTimes>{{100, 90}, {lie, 90}}, strict)) << lie;
    EXPECT_FALSE(slowest_of(std::vector<LapTimes>{{lie, 90}, {100, 90}}, strict)) << lie;
    EXPECT_FALSE(slowest_of(std::vector<LapTimes>{{100, 90}, {100, lie}}, strict)) << lie;
  }
  EXPECT_TRUE(slowest_of(std::vector<LapTimes>{{100, 90}, {160, 90}}, strict)) << "barriers";
  EXPECT_FALSE(slowest_of({}, strict));
}

}  // namespace
}  // namespace braid::nccl
