// Stage 1 on GPUs, on fake ones: what it chooses is the same on all ranks, and within reason; how
// well it chooses only a GPU tells.
#include "coll/device/tune.h"

#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "base/units.h"
#include "coll/device/fake_sums.h"
#include "support/gpu_ranks.h"

namespace braid::coll::device {
namespace {

using test::GpuRank;

TEST(DeviceTuning, AllRanksChooseTheSameShares) {
  constexpr int kSize = 2;
  sys::FakeCuda cuda(kSize);
  test::define_team_kernels(cuda);
  test::define_sums(cuda);
  std::mutex mutex;
  std::vector<std::vector<double>> chosen;
  test::run_gpus(kSize, cuda, {}, [&](GpuRank& rank) {
    const Result<bool> measured = tune_host_shares(rank.device, *rank.comm.state().group,
                                                   Deadline::after_ns(60_s), {256_KiB, 3});
    ASSERT_TRUE(measured.ok()) << measured.status().to_string();
    EXPECT_TRUE(measured.value());
    std::vector<double> shares;
    for (const plan::Op op : plan::kAllOps) shares.push_back(rank.device.host_share(op).long_share);
    const std::lock_guard lock(mutex);
    chosen.push_back(shares);
  });
  ASSERT_EQ(chosen.size(), static_cast<size_t>(kSize));
  EXPECT_EQ(chosen[0], chosen[1]);
  for (const double share : chosen[0]) {
    EXPECT_GE(share, 0);
    EXPECT_LE(share, kMostTunedShare);
  }
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
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
