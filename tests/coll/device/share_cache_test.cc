// What tuning found on GPUs is kept, and used only where it holds.
#include "coll/device/share_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "base/units.h"
#include "coll/device/fake_sums.h"
#include "support/gpu_ranks.h"
#include "sys/host/api.h"

namespace braid::coll::device {
namespace {

namespace fs = std::filesystem;
using test::GpuRank;

LinkShares some_shares() {
  LinkShares shares{{}, 5};
  for (size_t i = 0; i < shares.of_op.size(); ++i)
    shares.of_op[i] = {(i + 1) << 20, (i + 4) << 22, 0.01 * static_cast<double>(i), 0.25};
  return shares;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ShareCache, WhatIsWrittenIsRead) {
  const LinkShares shares = some_shares();
  const auto read = parse_shares(shares_to_json("k1", shares), "k1");
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read.value().ended_ns, 5);
  for (size_t i = 0; i < shares.of_op.size(); ++i) {
    EXPECT_EQ(read.value().of_op[i].short_bytes, shares.of_op[i].short_bytes);
    EXPECT_EQ(read.value().of_op[i].long_bytes, shares.of_op[i].long_bytes);
    EXPECT_NEAR(read.value().of_op[i].short_share, shares.of_op[i].short_share, 1.0 / plan::kWhole);
    EXPECT_NEAR(read.value().of_op[i].long_share, shares.of_op[i].long_share, 1.0 / plan::kWhole);
  }
}

TEST(ShareCache, WhatDoesNotHoldIsRefused) {
  const std::string good = shares_to_json("k1", some_shares());
  EXPECT_FALSE(parse_shares(good, "k2").ok());
  EXPECT_FALSE(parse_shares("", "k1").ok());
  EXPECT_FALSE(parse_shares(good.substr(0, good.size() / 2), "k1").ok());
  EXPECT_FALSE(parse_shares(replaced(good, "\"version\": 2", "\"version\": 1"), "k1").ok());
  EXPECT_FALSE(parse_shares(replaced(good, "\"all_gather\"", "\"all_reduce\""), "k1").ok());
  EXPECT_FALSE(
      parse_shares(replaced(good, "\"long_parts\": 16384", "\"long_parts\": 99999"), "k1").ok());
  EXPECT_FALSE(
      parse_shares(replaced(good, "\"long_bytes\": 16777216", "\"long_bytes\": 7"), "k1").ok());
}

TEST(ShareCache, TheKeyTellsGpusAndOptionsApart) {
  const std::vector<std::string> gpus = {"H200 0000:1b:00.0", "H200 0000:2c:00.0"};
  const Config plain;
  const std::string key = shares_key(gpus, plain);
  EXPECT_EQ(key, shares_key(gpus, plain));
  EXPECT_NE(key, shares_key({gpus[1], gpus[0]}, plain));
  EXPECT_NE(key, shares_key({gpus[0]}, plain));
  for (const auto& [name, value] : {std::pair{"BRAID_GPU_SLOT", "32KiB"},
                                    {"BRAID_GPU_LANES", "2"},
                                    {"BRAID_LINK_CAP", "nvlink:147"}}) {
    Config other;
    ASSERT_TRUE(other.set(name, value).ok());
    EXPECT_NE(key, shares_key(gpus, other)) << name;
  }
}

// An option that was left out let shares of one way to copy be used with another.
TEST(ShareCache, TheKeyKnowsEveryOptionOfGpus) {
  const std::vector<std::string> gpus = {"H200 0000:1b:00.0"};
  const std::string key = shares_key(gpus, Config());
  for (const Option& option : all_options()) {
    const std::string name = option.name;
    if (!name.starts_with("BRAID_GPU_") || option.type == OptionType::kBool) continue;
    Config other;
    ASSERT_TRUE(other.set(name, option.type == OptionType::kString ? "another" : "77").ok());
    EXPECT_EQ(key == shares_key(gpus, other), name == "BRAID_GPU_SAMPLE") << name;
  }
  Config same;
  ASSERT_TRUE(same.set("BRAID_GPU_SCRATCH", "536870912").ok());
  EXPECT_EQ(key, shares_key(gpus, same));
}

/// A folder of its own for the cache, with two fake GPUs to tune.
class DeviceTuningCache : public ::testing::Test {
 protected:
  struct Seen {
    std::vector<std::vector<double>> shares;  // by rank, in no order
    int num_from_cache = 0;
    int num_given_up = 0;
    int num_left_out = 0;
  };

  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  // Fake GPUs have no steady times.
  static constexpr TuneWork kWork{64_KiB, 2, 15_s, 1e9, 1e9, 0};

  Seen start(const std::string& mode, const test::Options& of_rank_1 = {},
             const TuneWork& work = kWork, int64_t most_ns_of_rank_1 = INT64_MAX) {
    sys::FakeCuda cuda(2);
    test::define_team_kernels(cuda);
    test::define_sums(cuda);
    Seen seen;
    std::mutex mutex;
    test::Options options = {{"BRAID_CACHE_DIR", folder_.string()}, {"BRAID_TUNE", mode}};
    options.insert(options_.begin(), options_.end());
    test::run_gpus(2, cuda, options, [&](GpuRank& rank) {
      for (const auto& [name, value] : of_rank_1)
        if (rank.rank() == 1) {
          EXPECT_TRUE(rank.comm.state().config.set(name, value).ok());
        }
      TuneWork own = work;
      if (rank.rank() == 1) own.time_ns = std::min(own.time_ns, most_ns_of_rank_1);
      const Result<bool> ensured = ensure_shares(rank.device, rank.device.links().main(),
                                                 rank.comm.state(), Deadline::after_ns(60_s), own);
      EXPECT_TRUE(ensured.ok()) << ensured.status().to_string();
      std::vector<double> shares;
      for (const plan::Op op : plan::kAllOps)
        shares.push_back(rank.device.links().main().shares().tuned(op).long_share);
      const std::lock_guard lock(mutex);
      seen.shares.push_back(shares);
      for (const std::string& event : rank.comm.state().events) {
        seen.num_from_cache += event == "gpu tuning read from the cache" ? 1 : 0;
        seen.num_given_up += event.starts_with("gpu tuning given up") ? 1 : 0;
        seen.num_left_out += event.starts_with("gpu tuning left out") ? 1 : 0;
      }
      EXPECT_EQ(ensured.ok() && ensured.value(), seen.num_given_up + seen.num_left_out == 0);
    });
    return seen;
  }

  test::Options options_;  // of all ranks, beside

  fs::path only_file() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder_)) files.push_back(entry.path());
    EXPECT_EQ(files.size(), 1U);
    return files.empty() ? fs::path() : files.front();
  }

  const fs::path folder_ =
      fs::temp_directory_path() / ("braid_shares_" + std::to_string(sys::process_id()));
};

TEST_F(DeviceTuningCache, TheSecondStartMeasuresNothing) {
  EXPECT_EQ(start("auto").num_from_cache, 0);
  // What only a cache can say: no tuning finds 0.123.
  LinkShares told = some_shares();
  told.ended_ns = 0;
  for (comm::TunedShare& share : told.of_op) share.long_share = 0.123;
  const std::string name = only_file().stem().string();
  std::ofstream(only_file()) << shares_to_json(name.substr(name.rfind('-') + 1), told);
  const Seen again = start("auto");
  EXPECT_EQ(again.num_from_cache, 2);
  for (const auto& shares : again.shares)
    for (const double share : shares) EXPECT_NEAR(share, 0.123, 1e-4);
}

// Its text was once refused by a rank whose window is another, and the others went on without it.
TEST_F(DeviceTuningCache, IsRankZerosWhateverOptionsOthersHave) {
  (void)start("auto");
  const Seen again = start("auto", {{"BRAID_GPU_HOST_WINDOW", "64KiB"}});
  EXPECT_EQ(again.num_from_cache, 2);
  EXPECT_EQ(again.shares.front(), again.shares.back());
}

TEST_F(DeviceTuningCache, ForceMeasuresAgain) {
  (void)start("auto");
  EXPECT_EQ(start("force").num_from_cache, 0);
}

// In a process that knows GPUs to be busy, which is noted by their key: the option gives this test
// one of its own.
TEST_F(DeviceTuningCache, WhatWasGivenUpIsNotKeptAndNotTriedAgainAtOnce) {
  options_ = {{"BRAID_GPU_LANES", "3"}};
  constexpr TuneWork kNoneAreAsEqual{64_KiB, 3, 15_s, 0, 1e9, 0};
  EXPECT_EQ(start("auto", {}, kNoneAreAsEqual).num_given_up, 2);
  EXPECT_FALSE(fs::exists(folder_));
  EXPECT_EQ(start("auto").num_left_out, 2);
  EXPECT_FALSE(fs::exists(folder_));
  EXPECT_EQ(start("force").num_left_out, 0);
  EXPECT_EQ(start("auto").num_from_cache, 2);
}

// Every comm would measure a slow machine again; and who gives it more time must get more.
TEST_F(DeviceTuningCache, WhatTheTimeWasShortForIsKeptUntilThereIsMore) {
  (void)start("auto");
  LinkShares cut = some_shares();
  cut.ended_ns = kWork.time_ns;
  const std::string name = only_file().stem().string();
  std::ofstream(only_file()) << shares_to_json(name.substr(name.rfind('-') + 1), cut);
  EXPECT_EQ(start("auto").num_from_cache, 2);
  TuneWork longer = kWork;
  longer.time_ns = 2 * kWork.time_ns;
  EXPECT_EQ(start("auto", {}, longer).num_from_cache, 0);
  EXPECT_EQ(start("auto").num_from_cache, 2);
}

TEST_F(DeviceTuningCache, AForcedOneThatIsCutOffDoesNotReplaceWhatHasMore) {
  (void)start("auto");
  const auto text = [&] {
    std::ifstream file(only_file());
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string whole = text();
  EXPECT_EQ(start("force", {}, kWork, 0).num_from_cache, 0);
  EXPECT_EQ(text(), whole);
  fs::remove(only_file());
  EXPECT_EQ(start("force", {}, kWork, 1).num_from_cache, 0);
  EXPECT_EQ(start("auto", {}, kWork, 1).num_from_cache, 2);  // better than nothing
}

// BRAID_TUNE_TIME is each rank's own. Rank 0's was noted, so that nothing was measured ever after.
TEST_F(DeviceTuningCache, TheTimeIsThatOfTheRankThatHasLeast) {
  for (const int64_t least_ns : {int64_t{1}, int64_t{0}}) {
    EXPECT_EQ(start("auto", {}, kWork, least_ns).num_from_cache, 0);
    EXPECT_EQ(start("auto", {}, kWork, least_ns).num_from_cache, 2);
    EXPECT_EQ(start("auto").num_from_cache, 0);
    EXPECT_EQ(start("auto").num_from_cache, 2);
    fs::remove(only_file());
  }
}

TEST_F(DeviceTuningCache, ADamagedFileIsMadeAnew) {
  (void)start("auto");
  const fs::path file = only_file();
  std::ofstream(file) << "{\"format\": ";
  EXPECT_EQ(start("auto").num_from_cache, 0);
  EXPECT_EQ(start("auto").num_from_cache, 2);
}

}  // namespace
}  // namespace braid::coll::device
