// Every tile once, in an order in which nobody waits for what comes later.
#include "overlap/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "overlap/forms.h"

namespace braid::overlap {
namespace {

static_assert(gather_schedule({4, 1, 256, 512}, shape_of(Form::k256Below), 8, 0).at(0, 0).shard ==
                  1,
              "the own shard comes first");
static_assert(scatter_schedule({4, 1, 256, 512}, shape_of(Form::k256Below), 8).at(0, 0).shard == 2,
              "and last");

struct Case {
  int32_t ranks, shard_rows, columns, band, head;
};
const std::vector<Case> kCases{{1, 128, 256, 8, 0},  {2, 1, 8, 1, 0},        {2, 256, 512, 4, 1},
                               {3, 129, 520, 2, 2},  {4, 1000, 264, 8, 3},   {5, 127, 1000, 3, 1},
                               {8, 128, 3584, 8, 2}, {8, 1024, 6144, 16, 8}, {7, 640, 136, 64, 5},
                               {8, 257, 128, 1, 0}};

template <typename Each>
void each_schedule(const Each& each) {
  for (const Case& c : kCases)
    for (int32_t rank = 0; rank < c.ranks; ++rank)
      for (const Form form : kAllForms) {
        const Extent extent{c.ranks, rank, c.shard_rows, c.columns};
        if (!fits(extent, shape_of(form))) continue;
        each(c, rank, gather_schedule(extent, shape_of(form), c.band, c.head), true);
        each(c, rank, scatter_schedule(extent, shape_of(form), c.band), false);
      }
}

TEST(Schedule, EveryElementIsInOneTileAndEveryPartHasItsPlace) {
  each_schedule([](const Case& c, int32_t, const Schedule& schedule, bool) {
    const Shape& shape = schedule.shape;
    std::set<std::tuple<int32_t, int32_t, int32_t>> seen;
    std::set<std::pair<int32_t, int32_t>> places;
    int64_t covered = 0;
    for (int32_t unit = 0; unit < schedule.num_units(); ++unit)
      for (int32_t block = 0; block < shape.cluster_m * shape.cluster_n; ++block) {
        const Tile tile = schedule.at(unit, block);
        ASSERT_TRUE(seen.insert({tile.shard, tile.row, tile.column}).second);
        ASSERT_TRUE(places.insert({tile.shard, tile.index}).second);
        ASSERT_GE(tile.index, 0);
        ASSERT_LT(tile.index, schedule.tiles_per_shard());
        ASSERT_EQ(schedule.unit_of(tile.shard, tile.index), unit);
        ASSERT_EQ(tile.row % shape.tile_m, 0);
        ASSERT_EQ(tile.column % shape.tile_n, 0);
        const int64_t rows = std::clamp(c.shard_rows - tile.row, 0, shape.tile_m);
        const int64_t columns = std::clamp(c.columns - tile.column, 0, shape.tile_n);
        covered += rows * columns;
      }
    EXPECT_EQ(covered, int64_t{c.ranks} * c.shard_rows * c.columns);
  });
}

TEST(Schedule, OnlyClustersAcrossHaveTilesOfTwoShards) {
  each_schedule([](const Case&, int32_t, const Schedule& schedule, bool) {
    for (int32_t unit = 0; unit < schedule.num_units(); ++unit) {
      const Tile first = schedule.at(unit, 0), second = schedule.at(unit, 1);
      ASSERT_EQ(first.shard == second.shard, schedule.shape.shards == 1);
      if (schedule.shape.shards == 1) continue;
      ASSERT_EQ(first.column, second.column) << "they share the weights";
      ASSERT_EQ(second.shard, (first.shard + schedule.step + schedule.ranks) % schedule.ranks);
    }
  });
}

TEST(Schedule, TilesAcrossNeedPairsOfShardsOfOneRowOfTiles) {
  const Shape across = shape_of(Form::k256Across);
  EXPECT_TRUE(fits({8, 0, 128, 256}, across));
  EXPECT_FALSE(fits({8, 0, 129, 256}, across));
  EXPECT_FALSE(fits({7, 0, 128, 256}, across));
  EXPECT_TRUE(fits({7, 0, 129, 256}, shape_of(Form::k256Below)));
}

TEST(Schedule, AClusterWaitsLastWhereItHasOneTileOfTheOwnShardAtMost) {
  const auto may = [](int32_t columns, int32_t clusters, int32_t most_sharers) {
    const Schedule schedule =
        scatter_schedule({8, 3, 128, 256 * columns}, shape_of(Form::k256Across), 3);
    return waits_last(schedule, split_of(schedule.num_units(), clusters, 672, most_sharers));
  };
  EXPECT_TRUE(may(48, 66, 80)) << "the stand's, m 1024";
  EXPECT_TRUE(may(66, 66, 0));
  EXPECT_FALSE(may(67, 66, 0)) << "a cluster has two";
  EXPECT_FALSE(may(48, 40, 0));
  EXPECT_FALSE(may(40, 66, 80)) << "behind its tile a cluster has a segment of one that is cut";
  const Schedule below = scatter_schedule({8, 3, 128, 25600}, shape_of(Form::k256Below), 3);
  EXPECT_TRUE(waits_last(below, split_of(below.num_units(), 7, 672, 0)));
}

TEST(Schedule, ShardsComeInTheOrderInWhichPushesArrive) {
  const Schedule schedule = gather_schedule({4, 1, 128, 256}, shape_of(Form::k256Beside), 1, 0);
  std::vector<int32_t> shards;
  for (int32_t unit = 0; unit < schedule.num_units(); ++unit)
    shards.push_back(schedule.at(unit, 0).shard);
  EXPECT_EQ(shards, (std::vector<int32_t>{1, 0, 3, 2}));
}

TEST(Schedule, NothingForOthersComesBehindTheOwnShard) {
  each_schedule([](const Case& c, int32_t rank, const Schedule& schedule, bool gathers) {
    if (gathers) return;
    bool is_own = false;
    std::vector<int32_t> first_of;
    for (int32_t unit = 0; unit < schedule.num_units(); ++unit) {
      // Of a unit across, the second tile's is the later one.
      const int32_t shard = schedule.at(unit, 1).shard;
      if (shard == rank) is_own = true;
      ASSERT_EQ(shard == rank, is_own) << c.ranks << " ranks, band " << c.band;
    }
  });
}

TEST(Schedule, AllRanksBeginWithAnotherOwner) {
  std::set<int32_t> owners;
  for (int32_t rank = 0; rank < 8; ++rank)
    owners.insert(
        scatter_schedule({8, rank, 128, 256}, shape_of(Form::k256Beside), 4).at(0, 0).shard);
  EXPECT_EQ(owners.size(), 8U);
}

TEST(Schedule, ABandEndsAtTheHeadsBorder) {
  const Schedule schedule = gather_schedule({8, 0, 128, 512}, shape_of(Form::k256Beside), 4, 2);
  // Two rows, one column of units: 0 and 1 are the head, then fours.
  EXPECT_EQ(schedule.end_of_band(0).shard, 7);
  EXPECT_EQ(schedule.end_of_band(1).shard, 7);
  EXPECT_EQ(schedule.end_of_band(2).shard, 3);
  EXPECT_EQ(schedule.end_of_band(7).shard, 1);
}

// What paces a block must come no earlier than what it needs itself, or it would not pace.
TEST(Schedule, TheEndOfABandIsTheLastOfItsRows) {
  each_schedule([](const Case&, int32_t, const Schedule& schedule, bool) {
    const auto place_of = [&](int32_t shard, int32_t row) {
      for (int32_t place = 0; place < schedule.ranks; ++place)
        if (schedule.shard_at(place) == shard)
          return int64_t{place / schedule.shape.shards} * schedule.unit_rows +
                 row / (schedule.shape.tile_m * schedule.shape.cluster_m);
      return int64_t{-1};
    };
    int64_t before = -1;
    for (int32_t unit = 0; unit < schedule.num_units(); ++unit) {
      const Rows end = schedule.end_of_band(unit);
      const Tile tile = schedule.at(unit, 0);
      const int64_t last = place_of(end.shard, end.row);
      ASSERT_GE(last, place_of(tile.shard, tile.row));
      ASSERT_LT(last - place_of(tile.shard, tile.row), std::max(schedule.band, schedule.head_rows));
      ASSERT_GE(last, before);
      before = last;
    }
  });
}

// Parts lie where their owner looks for them.
TEST(Schedule, AllRanksNumberTheTilesOfAShardAlike) {
  for (const Case& c : kCases)
    for (const Form form : kAllForms) {
      if (!fits({c.ranks, 0, c.shard_rows, c.columns}, shape_of(form))) continue;
      std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> index_of;
      for (int32_t rank = 0; rank < c.ranks; ++rank) {
        const Schedule schedule =
            scatter_schedule({c.ranks, rank, c.shard_rows, c.columns}, shape_of(form), c.band);
        for (int32_t unit = 0; unit < schedule.num_units(); ++unit)
          for (int32_t block = 0; block < 2; ++block) {
            const Tile tile = schedule.at(unit, block);
            const auto [at, is_new] =
                index_of.insert({{tile.shard, tile.row, tile.column}, tile.index});
            ASSERT_EQ(at->second, tile.index) << c.ranks << " ranks, band " << c.band;
          }
      }
    }
}

// What a batch waits for is made in a row: a shard's tiles are numbered as they come.
TEST(Schedule, TilesAreNumberedAsTheyAreMade) {
  for (const int32_t band : {1, 2, 4, 8, 12}) {  // of four rows of units to a shard
    const Schedule schedule = scatter_schedule({4, 1, 1024, 2048}, shape_of(Form::k256Below), band);
    std::array<int32_t, 4> before{-1, -1, -1, -1};
    for (int32_t unit = 0; unit < schedule.num_units(); ++unit) {
      const Tile tile = schedule.at(unit, 0);
      ASSERT_GT(tile.index, before[static_cast<size_t>(tile.shard)]) << "band " << band;
      before[static_cast<size_t>(tile.shard)] = tile.index;
    }
  }
}

TEST(Batches, MayBeOfSoManyTiles) {
  const Schedule schedule = scatter_schedule({2, 0, 300, 700}, shape_of(Form::k128Beside), 2);
  const BatchShape batches = batches_of(schedule, 1, 7);
  EXPECT_EQ(batches.tiles, 7);
  EXPECT_EQ(batches.per_shard, 3) << "of 18 tiles";
  EXPECT_EQ(batches_of(schedule, 1, 100).per_shard, 1);
}

TEST(Batches, AreAllTiles) {
  const Schedule schedule = scatter_schedule({2, 0, 300, 700}, shape_of(Form::k128Beside), 2);
  const int32_t all = schedule.tiles_per_shard();  // 18
  for (const int32_t count : {0, 1, 2, 5, 18, 100}) {
    const BatchShape batches = batches_of(schedule, count);
    EXPECT_GE(batches.tiles * batches.per_shard, all);
    EXPECT_LT(batches.tiles * (batches.per_shard - 1), all) << "none is empty";
    EXPECT_LE(batches.per_shard, std::max(count, 1));
  }
}

TEST(Split, EveryStageIsMultipliedOnceAndEveryUnitEndsOnce) {
  for (const int32_t clusters : {1, 2, 3, 16, 66})
    for (int32_t units = 1; units < 140; ++units)
      for (const int32_t stages : {1, 7, 64, 192, 672}) {
        const Split split = split_of(units, clusters, stages, kMostBlocks / 2);
        std::vector<int32_t> stages_of(static_cast<size_t>(units)), ends(stages_of);
        for (int32_t cluster = 0; cluster < clusters; ++cluster)
          for (int32_t i = 0;; ++i) {
            const Segment segment = split.at(cluster, i);
            if (segment.unit < 0) break;
            ASSERT_LT(segment.begin, segment.end);
            ASSERT_EQ(segment.is_last, segment.end == stages);
            stages_of[static_cast<size_t>(segment.unit)] += segment.end - segment.begin;
            ends[static_cast<size_t>(segment.unit)] += segment.is_last ? 1 : 0;
          }
        ASSERT_THAT(stages_of, ::testing::Each(stages)) << units << " units, " << clusters;
        ASSERT_THAT(ends, ::testing::Each(1)) << units << " units, " << clusters;
      }
}

// Sums lie by cluster: each has one at most, and those of a unit are of the clusters that its end asks.
TEST(Split, AnEndFindsTheSumsOfItsUnit) {
  int asked = 0;
  for (int32_t units = 1; units < 140; ++units)
    for (const int32_t stages : {64, 192, 672}) {
      const Split split = split_of(units, 66, stages, kMostBlocks / 2);
      std::map<int32_t, Segment> sums;
      for (int32_t cluster = 0; cluster < 66; ++cluster)
        for (int32_t i = 0; split.at(cluster, i).unit >= 0; ++i) {
          const Segment segment = split.at(cluster, i);
          if (!segment.is_last) {
            ASSERT_TRUE(sums.insert({cluster, segment}).second);
          }
        }
      for (int32_t cluster = 0; cluster < 66; ++cluster)
        for (int32_t i = 0; split.at(cluster, i).unit >= 0; ++i) {
          const Segment end = split.at(cluster, i);
          if (!end.is_last || end.begin == 0) continue;
          int32_t next = 0;  // stage
          for (int32_t from = split.first_sharer(end.unit); from < cluster; ++from, ++asked) {
            ASSERT_EQ(sums.at(from).unit, end.unit);
            ASSERT_EQ(sums.at(from).begin, next) << "in the order of K";
            next = sums.at(from).end;
          }
          ASSERT_EQ(next, end.begin);
        }
    }
  EXPECT_GT(asked, 0);
}

TEST(Split, ALastRoundThatIsNearlyFullIsLeftWhole) {
  EXPECT_EQ(split_of(2 * 66, 66, 192, 80).sharers, 0);
  EXPECT_EQ(split_of(2 * 66 + 60, 66, 672, 80).sharers, 0) << "61 stages saved";
  EXPECT_EQ(split_of(2 * 66 + 50, 66, 672, 80).sharers, 66);
  EXPECT_EQ(split_of(2 * 66 + 2, 66, 192, 80).sharers, 12) << "few share a unit";
  EXPECT_EQ(split_of(2 * 66 + 50, 66, 672, 0).sharers, 0) << "no room";
}

TEST(Pieces, ATileWaitsForAllThatItsRowsLieIn) {
  constexpr Pieces kPieces{100, 3};  // of 250 rows
  EXPECT_EQ(kPieces.first(128), 1);
  EXPECT_EQ(kPieces.last(0, 128, 250), 1);
  EXPECT_EQ(kPieces.last(128, 128, 250), 2);
  EXPECT_LT(kPieces.last(256, 128, 250), kPieces.per_shard) << "a tile behind the shard's end";
  EXPECT_LT(kPieces.last(384, 128, 250), kPieces.first(384)) << "and one far behind it";
}

TEST(Forms, SharedMemoryIsWhatAMultiprocessorHas) {
  for (const Form form : kAllForms) EXPECT_LE(shared_bytes(shape_of(form)), 227 * 1024);
}

}  // namespace
}  // namespace braid::overlap
