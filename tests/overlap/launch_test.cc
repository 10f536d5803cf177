// What a launch is told, looked at by a kernel of the test's own.
#include "overlap/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <vector>

#include "overlap/fatbins.h"
#include "sys/cuda/fake.h"

namespace braid::overlap {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Gemm gemm_of(int32_t ranks, int32_t shard_rows, int32_t columns, int32_t depth) {
  Gemm gemm;
  gemm.ranks = ranks;
  gemm.rank = ranks - 1;
  gemm.shard_rows = shard_rows;
  gemm.columns = columns;
  gemm.depth = depth;
  gemm.a = 0x10000;
  gemm.w = 0x20000;
  return gemm;
}

/// A fake map holds the layout that it was made of.
sys::TensorLayout layout_of(const device::TensorMap& map) {
  sys::TensorLayout layout;
  std::memcpy(static_cast<void*>(&layout), &map, sizeof layout);
  return layout;
}

class Launch : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kernels::gather_fatbin().empty()) GTEST_SKIP() << "skipped: needs nvcc";
    for (const char* op : {"gather", "scatter", "exchange"})
      for (const char* type : {"bf16", "fp16", "bf16_kn", "fp16_kn"})
        for (const char* form : {"256_below", "256_beside", "128_beside"})
          define(fmt::format("braid_{}_{}_{}", op, type, form));
    cuda_.define_kernel("braid_count", [](const auto&, auto) { return Status(); });
    ASSERT_TRUE(cuda_.use_device(0).ok());
    Result<sys::Stream> stream = cuda_.create_stream(sys::StreamPriority::kNormal);
    ASSERT_TRUE(stream.ok());
    stream_ = *stream;
    Result<Launcher> launcher = Launcher::create(cuda_, 0);
    ASSERT_TRUE(launcher.ok()) << launcher.status().to_string();
    launcher_ = *launcher;
  }
  void define(const std::string& name) {
    cuda_.define_kernel(name, [this, name](const sys::LaunchShape& shape, std::span<void*> args) {
      launched_ = name;
      shape_ = shape;
      args_ = *static_cast<const GemmArgs*>(args[0]);
      return Status();
    });
  }
  Status gather(const Gemm& gemm, const Choice& choice, const Gathered& gathered) {
    return launcher_->gather(gemm, choice, gathered, 0x8, {}, stream_);
  }

  sys::FakeCuda cuda_;
  sys::Stream stream_;
  std::optional<Launcher> launcher_;
  std::string launched_;
  sys::LaunchShape shape_;
  GemmArgs args_{};
};

TEST_F(Launch, MapsAreOfShardsAndOfWhatABlockFetches) {
  ASSERT_TRUE(gather(gemm_of(4, 200, 520, 328), {}, {0x30000, 0x40000, 64}).ok());
  EXPECT_EQ(launched_, "braid_gather_bf16_256_below");
  const sys::TensorLayout a = layout_of(args_.a), w = layout_of(args_.w), c = layout_of(args_.c[0]);
  EXPECT_THAT(a.extent, ElementsAre(328, 200, 4));
  EXPECT_THAT(a.stride_bytes, ElementsAre(656, 131'200));
  EXPECT_THAT(a.box, ElementsAre(64, 128, 1));
  EXPECT_THAT(w.extent, ElementsAre(328, 520, 1));
  EXPECT_THAT(w.box, ElementsAre(64, 128, 1)) << "a half of the columns";
  EXPECT_THAT(c.extent, ElementsAre(520, 200, 4));
  EXPECT_THAT(c.box, ElementsAre(64, 64, 1));
  EXPECT_EQ(args_.num_k, 6);
  EXPECT_EQ(args_.pieces.per_shard, 4);
}

TEST_F(Launch, BlocksBesideEachOtherFetchHalfOfTheRows) {
  Choice choice;
  choice.form = Form::k256Beside;
  Gemm gemm = gemm_of(1, 512, 1024, 256);
  gemm.is_kn = true;
  gemm.dtype = Dtype::kFloat16;
  ASSERT_TRUE(gather(gemm, choice, {0x30000, 0, 0}).ok());
  EXPECT_EQ(launched_, "braid_gather_fp16_kn_256_beside");
  EXPECT_THAT(layout_of(args_.a).box, ElementsAre(64, 64, 1));
  EXPECT_THAT(layout_of(args_.w).extent, ElementsAre(1024, 256, 1));
  EXPECT_THAT(layout_of(args_.w).box, ElementsAre(64, 64, 1));
  EXPECT_EQ(args_.arrived, nullptr);
}

TEST_F(Launch, ThereAreNoMoreClustersThanUnits) {
  ASSERT_TRUE(gather(gemm_of(1, 300, 256, 64), {}, {0x30000, 0, 0}).ok());
  EXPECT_EQ(shape_.num_blocks, 4U);
  Choice few;
  few.num_blocks = 7;
  ASSERT_TRUE(gather(gemm_of(1, 8192, 8192, 64), few, {0x30000, 0, 0}).ok());
  EXPECT_EQ(shape_.num_blocks, 6U) << "whole clusters";
}

TEST_F(Launch, AllPartsHaveTheirPlace) {
  const Gemm gemm = gemm_of(3, 300, 700, 64);
  for (const Form form : kAllForms) {
    Choice choice;
    choice.form = form;
    const Schedule schedule = schedule_for(Op::kScatter, gemm, choice);
    const Shape shape = shape_of(form);
    const uint64_t of_tile = static_cast<uint64_t>(shape.tile_m * shape.tile_n) * 2;
    EXPECT_EQ(room_bytes(Op::kScatter, gemm, choice, 1),
              3 * of_tile * static_cast<uint64_t>(schedule.tiles_per_shard()));
    EXPECT_EQ(room_bytes(Op::kScatter, gemm, choice),
              2 * room_bytes(Op::kScatter, gemm, choice, 1));
    EXPECT_EQ(flag_bytes(Op::kScatter, gemm, choice),
              3 * 2 * 8 * static_cast<uint64_t>(schedule.tiles_per_shard()));
  }
}

TEST_F(Launch, TilesThatMakeNoRoundAreCutWhereThereIsRoomForSums) {
  const Gemm gemm = gemm_of(8, 1024, 12'288, 43'008);  // 1,536 units for 66 clusters
  Parted places;
  places.c[0] = 0x30000;
  Choice choice;
  choice.num_blocks = 132;
  const auto scatter = [&] { return launcher_->scatter(gemm, choice, places, 0x8, {}, stream_); };
  ASSERT_TRUE(scatter().ok());
  EXPECT_EQ(args_.split.sharers, 0);
  EXPECT_EQ(args_.split.whole, args_.schedule.num_units());
  places.sums = {0x50000, 0x60000};
  ASSERT_TRUE(scatter().ok());
  EXPECT_EQ(args_.split.num_clusters * 2, static_cast<int32_t>(shape_.num_blocks));
  EXPECT_EQ(args_.split.whole, 23 * 66);
  EXPECT_EQ(args_.split.units, 18);
  EXPECT_EQ(args_.split.sharers, 66);
  choice.splits = false;
  ASSERT_TRUE(scatter().ok());
  EXPECT_EQ(args_.split.sharers, 0);
}

TEST_F(Launch, TilesAcrossAreTheSameKernelsAndWaitLast) {
  Choice choice;
  choice.form = Form::k256Across;
  choice.num_blocks = 132;
  Parted places;
  places.c[0] = 0x30000;
  places.sums = {0x50000, 0x60000};
  const auto scatter = [&](const Gemm& gemm) {
    return launcher_->scatter(gemm, choice, places, 0x8, {}, stream_);
  };
  ASSERT_TRUE(scatter(gemm_of(8, 128, 12'288, 43'008)).ok());
  EXPECT_EQ(launched_, "braid_scatter_bf16_256_below");
  EXPECT_EQ(args_.schedule.num_units(), 4 * 48);
  EXPECT_EQ(args_.schedule.tiles_per_shard(), 48);
  // Cut, clusters would have segments behind tiles of the own shard.
  ASSERT_TRUE(scatter(gemm_of(8, 128, 40 * 256, 43'008)).ok());
  EXPECT_EQ(args_.split.sharers, 0);
  EXPECT_EQ(args_.split.whole, args_.schedule.num_units());
  EXPECT_THAT(scatter(gemm_of(8, 128, 67 * 256, 43'008)).message(), HasSubstr("across shards"));
  EXPECT_THAT(scatter(gemm_of(8, 129, 12'288, 43'008)).message(), HasSubstr("at most 128 rows"));
  EXPECT_THAT(scatter(gemm_of(7, 128, 12'288, 43'008)).message(), HasSubstr("of 7 ranks"));
}

TEST_F(Launch, FewTilesAreSharedByAllBlocks) {
  Choice choice;
  choice.form = Form::k256Beside;
  choice.num_blocks = 132;
  Parted places;
  places.c[0] = 0x30000;
  places.sums = {0x50000, 0x60000};
  const Gemm gemm = gemm_of(1, 64, 6144, 12'288);
  ASSERT_TRUE(launcher_->scatter(gemm, choice, places, 0x8, {}, stream_).ok());
  EXPECT_EQ(args_.split.whole, 0);
  EXPECT_EQ(shape_.num_blocks, 132U);
}

TEST(Pushes, AreAllBatchesForOthersAsTheyAreMade) {
  Gemm gemm = gemm_of(4, 1024, 2048, 64);  // rank 3; four rows of units, 64 tiles to a shard
  for (const int32_t band : {2, 4, 12})
    for (const int32_t batches : {1, 2, 3}) {
      Choice choice;
      choice.band = band;
      choice.batches = batches;
      const Schedule schedule = schedule_for(Op::kScatter, gemm, choice);
      std::vector<int32_t> halves_of(4), counters;
      int32_t before = -1;
      for (const Push& push : pushes_of(gemm, choice)) {
        ASSERT_NE(push.shard, 3) << "the own one is added here";
        ASSERT_EQ(push.first, halves_of[static_cast<size_t>(push.shard)]) << "in their order";
        halves_of[static_cast<size_t>(push.shard)] += push.halves;
        const int32_t made = schedule.unit_of(push.shard, (push.first + push.halves) / 2 - 1);
        ASSERT_GE(made, before);
        before = made;
        counters.push_back(push.counter);
      }
      EXPECT_THAT(halves_of, ElementsAre(128, 128, 128, 0));
      EXPECT_EQ(std::set<int32_t>(counters.begin(), counters.end()).size(), counters.size());
      EXPECT_LT(*std::max_element(counters.begin(), counters.end()), num_counters(gemm, choice));
    }
}

TEST_F(Launch, PreloadFindsEveryKernel) { EXPECT_TRUE(launcher_->preload().ok()); }

TEST(LaunchChecks, NameWhatNoKernelTakes) {
  const auto words = [](auto&& change) {
    Gemm gemm = gemm_of(2, 128, 256, 64);
    change(gemm);
    return check(gemm).message();
  };
  EXPECT_EQ(words([](Gemm&) {}), "");
  EXPECT_THAT(words([](Gemm& g) { g.dtype = Dtype::kFloat32; }), HasSubstr("float32 given"));
  EXPECT_THAT(words([](Gemm& g) { g.depth = 100; }), HasSubstr("depth 100; multiples of 8"));
  EXPECT_THAT(words([](Gemm& g) { g.columns = 12; }), HasSubstr("12 columns"));
  EXPECT_THAT(words([](Gemm& g) { g.a = 24; }), HasSubstr("multiples of 16"));
  EXPECT_THAT(words([](Gemm& g) { g.ranks = 9; }), HasSubstr("1 to 8 ranks"));
  EXPECT_THAT(words([](Gemm& g) { g.shard_rows = 0; }), HasSubstr("shards of 0 rows"));
}

TEST(LaunchChecks, OtherGpusAreRefused) {
  EXPECT_TRUE(runs_on(9, 0));
  EXPECT_FALSE(runs_on(8, 0));
  EXPECT_FALSE(runs_on(10, 0));
}

}  // namespace
}  // namespace braid::overlap
