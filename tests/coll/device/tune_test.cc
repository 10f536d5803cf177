// Stage 1 on GPUs, on fake ones: what it chooses is the same on all ranks, and within reason; how
// well it chooses only a GPU tells.
#include "coll/device/tune.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>

#include "base/sanitizer.h"
#include "base/units.h"
#include "coll/device/fake_sums.h"
#include "coll/device/tune_pace.h"
#include "support/gpu_ranks.h"

namespace braid::coll::device {
namespace {

using test::GpuRank;

constexpr int kSize = 2;
// Fake GPUs are as quick as the processor that plays them is idle: their times say nothing.
constexpr double kAny = 1e9;

struct Tuned {
  TuneEnd end;
  std::array<comm::TunedShare, plan::kNumOps> of_op;
  std::array<uint32_t, plan::kNumOps> host_parts;  // of a long message, in the next call
};

/// Which looks for pauses find one, counted over the GPUs: two before an operation, until none
/// finds any, and two behind its calls.
using Pauses = std::function<bool(int)>;
bool never(int) { return false; }

/// What the ranks came to.
std::array<Tuned, kSize> tune(const TuneWork& work, const Pauses& has_pause = never) {
  sys::FakeCuda cuda(kSize);
  test::define_team_kernels(cuda);
  test::define_sums(cuda);
  std::atomic<int> num_looks = 0;
  cuda.define_kernel("braid_longest_pause", [&](const sys::LaunchShape&, std::span<void*> args) {
    *test::argument<int64_t*>(args, 0) = has_pause(num_looks++) ? 300'000 : 40'000;
    return Status();
  });
  std::array<Tuned, kSize> all{};
  test::run_gpus(kSize, cuda, {}, [&](GpuRank& rank) {
    const Result<TuneEnd> end =
        tune_shares(rank.device, rank.device.links().main(), *rank.comm.state().group,
                    Deadline::after_ns(60_s), work);
    ASSERT_TRUE(end.ok()) << end.status().to_string();
    Tuned& tuned = all[static_cast<size_t>(rank.rank())];
    tuned.end = end.value();
    for (const plan::Op op : plan::kAllOps) {
      const auto i = static_cast<size_t>(op);
      tuned.of_op[i] = rank.device.links().main().shares().tuned(op);
      tuned.host_parts[i] = rank.device.links().main().shares().parts(op, 1_GiB);
    }
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
  return all;
}

void expect_nvlink_alone(const Tuned& tuned, TuneEnd end = TuneEnd::kDisturbed) {
  EXPECT_EQ(tuned.end, end);
  for (size_t op = 0; op < plan::kNumOps; ++op) {
    EXPECT_EQ(tuned.of_op[op].short_share, 0);
    EXPECT_EQ(tuned.of_op[op].long_share, 0);
    EXPECT_EQ(tuned.host_parts[op], 0U) << "no share that was tried stays";
  }
}

void expect_alike(const std::array<Tuned, kSize>& all) {
  EXPECT_EQ(all[0].end, all[1].end);
  for (size_t op = 0; op < plan::kNumOps; ++op) {
    EXPECT_EQ(all[0].of_op[op].long_bytes, all[1].of_op[op].long_bytes);
    EXPECT_EQ(all[0].of_op[op].short_share, all[1].of_op[op].short_share);
    EXPECT_EQ(all[0].of_op[op].long_share, all[1].of_op[op].long_share);
    EXPECT_EQ(all[0].host_parts[op], all[1].host_parts[op]);
  }
}

TEST(DeviceTuning, AllRanksChooseTheSameShares) {
  const auto all = tune({256_KiB, 3, 60_s, kAny, kAny, 0});
  EXPECT_EQ(all[0].end, TuneEnd::kDone);
  expect_alike(all);
  for (const comm::TunedShare& share : all[0].of_op) {
    EXPECT_GE(share.long_share, 0);
    EXPECT_LE(share.long_share, kMostTunedShare);
  }
}

// 16 programs on two GPUs once stood in their first calls for minutes.
TEST(DeviceTuning, WithoutTimeItIsGivenUpOnAllRanks) {
  const TuneWork work{256_KiB, 3, 0, kAny, kAny, 0};
  for (const Tuned& tuned : tune(work)) expect_nvlink_alone(tuned, TuneEnd::kTimeOver);
  constexpr int kBehindTheCall = 2;
  const auto pause = [](int look) { return look >= kBehindTheCall; };
  for (const Tuned& tuned : tune(work, pause)) expect_nvlink_alone(tuned);
}

TEST(DeviceTuning, AmongOthersWorkItIsGivenUpOnAllRanks) {
  constexpr double kNone = 0;  // no times are as equal as that, no quarter is as quick
  for (const Tuned& tuned : tune({256_KiB, 3, 60_s, kNone, kAny, 0})) expect_nvlink_alone(tuned);
  for (const Tuned& tuned : tune({256_KiB, 3, 60_s, kAny, kNone, 0})) expect_nvlink_alone(tuned);
}

constexpr TuneWork kBelieving{64_KiB, 3, 60_s, kAny, kAny, 0};

// On one rank's GPU, and a pause need not come while a call is timed.
TEST(DeviceTuning, BesideAnotherProgramsKernelsItIsGivenUpOnAllRanks) {
  const Pauses on_one_gpu = [](int look) { return look % 2 == 1; };
  for (const Tuned& tuned : tune(kBelieving, on_one_gpu)) expect_nvlink_alone(tuned);
  const auto all = tune(kBelieving, [](int look) { return look >= 2 * 4; });  // of two operations
  expect_alike(all);
  EXPECT_EQ(all[0].end, TuneEnd::kDisturbed);
  EXPECT_GT(all[0].of_op[1].long_bytes, 0U);
  EXPECT_EQ(all[0].of_op[2].long_bytes, 0U);
}

// A rank that was still starting would leave the job without the host link for as long as it runs.
TEST(DeviceTuning, WhoIsSoonThroughIsWaitedFor) {
  const auto all = tune(kBelieving, [](int look) { return look < 4; });
  expect_alike(all);
  EXPECT_EQ(all[0].end, TuneEnd::kDone);
}

TEST(DeviceTuning, OneOperationIsMeasuredOnceMore) {
  constexpr int kBehindTheSecond = 4 + 2;
  const auto once = [](int look) { return look == kBehindTheSecond; };
  auto all = tune(kBelieving, once);
  expect_alike(all);
  EXPECT_EQ(all[0].end, TuneEnd::kDone);
  const auto twice = [&](int look) { return once(look) || look == kBehindTheSecond + 5; };
  all = tune(kBelieving, twice);
  expect_alike(all);
  EXPECT_EQ(all[0].end, TuneEnd::kDisturbed);
  EXPECT_EQ(all[0].of_op[1].long_bytes, 0U);
}

TEST(DeviceTuning, WhatCannotBeIsNotBelieved) {
  constexpr double kMoreThanAll = 1e9;
  for (const Tuned& tuned : tune({64_KiB, 3, 60_s, kAny, kAny, kMoreThanAll}))
    expect_nvlink_alone(tuned);
}

// Wherever the end of the time falls, no rank goes on alone, and what was measured holds.
TEST(DeviceTuning, AllRanksEndTogetherWheneverTheTimeIsOver) {
  TuneEnd end = TuneEnd::kTimeOver;
  int num_over = 0;
  constexpr int64_t kSteps = kIsSanitized ? 1 : 2;  // a run takes seconds there
  for (int64_t time_ns = 1_ms; end == TuneEnd::kTimeOver; time_ns += time_ns / kSteps) {
    const auto all = tune({64_KiB, 8, time_ns, kAny, kAny, 0});
    expect_alike(all);
    end = all[0].end;
    num_over += end == TuneEnd::kTimeOver ? 1 : 0;
  }
  EXPECT_EQ(end, TuneEnd::kDone);
  EXPECT_GT(num_over, 0);
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

// An operation that is measured once more was not counted.
TEST(TunePace, MorePartsThanThereAreTakeNoMoreThanIsLeft) {
  TunePace pace(1000, 4);
  pace.begin(3);
  pace.saw(400);
  for (int again = 0; again < 3; ++again) {
    pace.begin(3);  // all that is left: until 1000
    pace.saw(pace.elapsed_ns() + 199);
    EXPECT_TRUE(pace.has_time());
  }
  pace.saw(1000);
  EXPECT_FALSE(pace.has_time());
}

TEST(TunePace, WhatIsSkippedFallsToTheOthers) {
  TunePace pace(1000, 4);
  pace.skip(2);
  pace.begin(1);  // of two
  pace.saw(499);
  EXPECT_TRUE(pace.has_time());
  pace.saw(500);
  EXPECT_FALSE(pace.has_time());
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

// Beside a program of short kernels "685 us over NVLink alone, 396 us with 3 %" was kept, once in
// three starts.
TEST(TunePace, AShareBringsNoMoreThanItCarries) {
  constexpr double kLeast = 0.9;
  EXPECT_TRUE(is_possible(373, 0.08, 342, kLeast));
  EXPECT_TRUE(is_possible(373, 0.08, 400, kLeast));
  EXPECT_TRUE(is_possible(5624, 0.2, 4407, kLeast));
  EXPECT_TRUE(is_possible(700, 0, 700, kLeast));
  EXPECT_FALSE(is_possible(685, 0.03, 396, kLeast));
  EXPECT_FALSE(is_possible(433, 0.04, 351, kLeast));
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
