// Stage 1 on GPUs, on fake ones: what it chooses is the same on all ranks, and within reason; how
// well it chooses only a GPU tells.
#include "coll/device/tune.h"

#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "base/units.h"
#include "coll/device/fake_sums.h"
#include "coll/device/tune_pace.h"
#include "support/gpu_ranks.h"

namespace braid::coll::device {
namespace {

using test::GpuRank;

constexpr int kSize = 2;
// Fake GPUs are as quick as the processor that plays them is idle: no spread says anything.
constexpr double kAnySpread = 1e9;

struct Tuned {
  bool is_worth_keeping;
  std::vector<comm::HostShare> shares;  // by operation
};

/// What every rank came to, in no order.
std::vector<Tuned> tune(const TuneWork& work) {
  sys::FakeCuda cuda(kSize);
  test::define_team_kernels(cuda);
  test::define_sums(cuda);
  std::mutex mutex;
  std::vector<Tuned> all;
  test::run_gpus(kSize, cuda, {}, [&](GpuRank& rank) {
    const Result<bool> measured =
        tune_host_shares(rank.device, *rank.comm.state().group, Deadline::after_ns(60_s), work);
    ASSERT_TRUE(measured.ok()) << measured.status().to_string();
    Tuned tuned{measured.value(), {}};
    for (const plan::Op op : plan::kAllOps) tuned.shares.push_back(rank.device.host_share(op));
    const std::lock_guard lock(mutex);
    all.push_back(tuned);
  });
  EXPECT_EQ(all.size(), static_cast<size_t>(kSize));
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
  return all;
}

void expect_nvlink_alone(const Tuned& tuned) {
  EXPECT_FALSE(tuned.is_worth_keeping);
  for (const comm::HostShare& share : tuned.shares) {
    EXPECT_EQ(share.short_share, 0);
    EXPECT_EQ(share.long_share, 0);
  }
}

TEST(DeviceTuning, AllRanksChooseTheSameShares) {
  const std::vector<Tuned> all = tune({256_KiB, 3, 60_s, kAnySpread});
  for (size_t op = 0; op < plan::kNumOps; ++op) {
    EXPECT_EQ(all[0].shares[op].long_share, all[1].shares[op].long_share);
    EXPECT_EQ(all[0].shares[op].short_share, all[1].shares[op].short_share);
    EXPECT_GE(all[0].shares[op].long_share, 0);
    EXPECT_LE(all[0].shares[op].long_share, kMostTunedShare);
  }
  EXPECT_TRUE(all[0].is_worth_keeping && all[1].is_worth_keeping);
}

// 16 programs on two GPUs once stood in their first calls for minutes.
TEST(DeviceTuning, WithoutTimeItIsGivenUpOnAllRanks) {
  for (const Tuned& tuned : tune({256_KiB, 3, 0, kAnySpread})) expect_nvlink_alone(tuned);
}

// Wherever the end of the time falls, no rank goes on alone.
TEST(DeviceTuning, AllRanksEndTogetherWheneverTheTimeIsOver) {
  for (const int64_t time_ns : {1_ms, 4_ms, 16_ms, 64_ms, 256_ms}) {
    const std::vector<Tuned> all = tune({64_KiB, 3, time_ns, kAnySpread});
    EXPECT_EQ(all[0].is_worth_keeping, all[1].is_worth_keeping);
    for (size_t op = 0; op < plan::kNumOps; ++op) {
      EXPECT_EQ(all[0].shares[op].long_bytes, all[1].shares[op].long_bytes);
      EXPECT_EQ(all[0].shares[op].long_share, all[1].shares[op].long_share);
    }
  }
}

TEST(DeviceTuning, AmongOthersWorkItIsGivenUpOnAllRanks) {
  constexpr double kNone = 0;  // no times are as equal as that
  for (const Tuned& tuned : tune({256_KiB, 3, 60_s, kNone})) expect_nvlink_alone(tuned);
}

TEST(TunePace, WhatAPartLeavesOverFallsToTheOthers) {
  TunePace pace(1000, 4);
  pace.begin(1);  // until 250
  pace.saw(249);
  EXPECT_TRUE(pace.has_time());
  pace.saw(250);
  EXPECT_FALSE(pace.has_time());
  pace.saw(100);  // a rank that began later
  EXPECT_EQ(pace.elapsed_ns(), 250);
  pace.begin(2);  // of three parts, 250 each: until 750
  pace.saw(300);
  EXPECT_TRUE(pace.has_time());
  pace.begin(1);  // until the end
  pace.saw(999);
  EXPECT_TRUE(pace.has_time());
  EXPECT_FALSE(pace.is_over());
  pace.saw(1000);
  EXPECT_FALSE(pace.has_time());
  EXPECT_TRUE(pace.is_over());
}

TEST(TunePace, BehindTheEndNothingHasTime) {
  TunePace pace(1000, 4);
  pace.saw(1500);
  pace.begin(1);
  EXPECT_FALSE(pace.has_time());
  EXPECT_TRUE(pace.is_over());
}

TEST(TunePace, DisturbedAreTimesOfWhichHalfAreFarFromTheLeast) {
  constexpr double kSpread = 1.5;
  EXPECT_FALSE(is_disturbed({700}, kSpread));
  EXPECT_FALSE(is_disturbed({700, 710, 705, 30'000, 702}, kSpread));  // one of them
  EXPECT_FALSE(is_disturbed({700, 1050, 1050}, kSpread));
  EXPECT_TRUE(is_disturbed({700, 1051, 1051}, kSpread));
  EXPECT_TRUE(is_disturbed({370, 7345, 9'330, 8'448, 372}, kSpread));
}

TEST(DeviceTuning, OfSharesAsGoodTheSmallestIsChosen) {
  const TimedShare alone[] = {{0, 700}};
  EXPECT_EQ(least_good_share(alone).share, 0);
  const TimedShare clear[] = {{0, 2093}, {0.08, 1932}, {0.09, 1919}, {0.1, 2050}};
  EXPECT_EQ(least_good_share(clear).share, 0.09);
  const TimedShare level[] = {{0, 2458}, {0.05, 2337}, {0.04, 2340}, {0.06, 2350}};
  EXPECT_EQ(least_good_share(level).share, 0.04);
  EXPECT_EQ(least_good_share(level).us, 2340);
}

}  // namespace
}  // namespace braid::coll::device
