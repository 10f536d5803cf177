// No order of events stops the kernels for good, for 2 to 8 ranks.
#include "overlap/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "overlap/forms.h"

namespace braid::overlap {
namespace {

constexpr std::array kTallForms{Form::k256Below, Form::k256Beside, Form::k128Beside};

Simulator::World world_of(Op op, int32_t ranks, int32_t blocks, int32_t epochs, Form form,
                          int32_t band) {
  Simulator::World world;
  world.op = op;
  world.ranks = ranks;
  world.blocks = blocks;
  world.epochs = epochs;
  world.schedule = [=](int32_t rank) {
    if (op == Op::kExchange) return exchange_schedule(300, 1100, shape_of(form), band);
    return scatter_schedule({ranks, rank, 300, 700}, shape_of(form), band);
  };
  return world;
}

TEST(Simulator, ScatterComesThroughInAnyOrder) {
  for (int32_t ranks = 2; ranks <= 8; ++ranks)
    for (uint32_t seed = 0; seed < 60; ++seed) {
      const Form form = kTallForms[seed % 3];
      const auto blocks = static_cast<int32_t>(1 + seed % 7);
      const auto band = static_cast<int32_t>(1 + seed % 5);
      EXPECT_EQ(Simulator(world_of(Op::kScatter, ranks, blocks, 3, form, band), seed).run(), "")
          << ranks << " ranks, " << blocks << " blocks, band " << band << ", seed " << seed;
    }
}

TEST(Simulator, ExchangeComesThroughInAnyOrder) {
  for (int32_t ranks = 2; ranks <= 8; ++ranks)
    for (uint32_t seed = 0; seed < 60; ++seed) {
      const auto blocks = static_cast<int32_t>(1 + seed % 7);
      EXPECT_EQ(
          Simulator(world_of(Op::kExchange, ranks, blocks, 4, Form::k128Beside, 2), seed).run(), "")
          << ranks << " ranks, " << blocks << " blocks, seed " << seed;
    }
}

// Tiles that blocks share, of others' shards and of the own one.
TEST(Simulator, SplitTilesComeThroughInAnyOrder) {
  int shared = 0;
  for (int32_t ranks = 1; ranks <= 8; ++ranks)
    for (uint32_t seed = 0; seed < 60; ++seed) {
      const auto blocks = static_cast<int32_t>(2 + seed % 9);
      Simulator::World world =
          world_of(Op::kScatter, ranks, blocks, 3, kTallForms[seed % 3], 1 + seed % 5);
      world.stages = 1000;
      world.most_sharers = kMostBlocks;
      shared += split_of(world.schedule(0).num_units(), blocks, 1000, kMostBlocks).sharers;
      EXPECT_EQ(Simulator(world, seed).run(), "")
          << ranks << " ranks, " << blocks << " blocks, seed " << seed;
    }
  EXPECT_GT(shared, 0);
}

TEST(Simulator, BatchesComeThroughInAnyOrder) {
  for (int32_t ranks = 2; ranks <= 8; ++ranks)
    for (uint32_t seed = 0; seed < 60; ++seed) {
      Simulator::World world = world_of(Op::kScatter, ranks, 1 + static_cast<int32_t>(seed % 7), 3,
                                        kTallForms[seed % 3], 1 + static_cast<int32_t>(seed % 5));
      world.batches = 1 + static_cast<int32_t>(seed % 4);
      EXPECT_EQ(Simulator(world, seed).run(), "") << ranks << " ranks, seed " << seed;
    }
}

/// Tiles across shards of 100 rows: `columns` columns of units.
Simulator::World across(int32_t ranks, int32_t columns, int32_t blocks, int32_t band) {
  Simulator::World world;
  world.ranks = ranks;
  world.blocks = blocks;
  world.epochs = 3;
  world.schedule = [=](int32_t rank) {
    return scatter_schedule({ranks, rank, 100, 256 * columns}, shape_of(Form::k256Across), band);
  };
  return world;
}

// Wherever waits_last() says that they may be across, whole, cut, in batches or by pushers; and of
// what it refuses, some would stop.
TEST(Simulator, TilesAcrossShardsComeThroughWhereEachClusterWaitsLast) {
  int refused = 0, cut = 0, stopped = 0, whole = 0;
  for (int32_t ranks = 2; ranks <= 8; ranks += 2)
    for (uint32_t seed = 0; seed < 200; ++seed) {
      const auto at = static_cast<int32_t>(seed);
      Simulator::World world = across(ranks, 1 + at % 11, 1 + at % 13, 1 + at % 4);
      world.batches = at % 4;
      world.stages = 1000;
      world.most_sharers = at % 3 == 0 ? 0 : kMostBlocks;
      const Schedule schedule = world.schedule(0);
      const Split split =
          split_of(schedule.num_units(), world.blocks, world.stages, world.most_sharers);
      const std::string found = Simulator(world, seed).run();
      if (!waits_last(schedule, split)) {
        ++refused;
        stopped += found == "no block can go on" ? 1 : 0;
        continue;
      }
      (split.sharers > 0 ? cut : whole)++;
      EXPECT_EQ(found, "") << ranks << " ranks, seed " << seed;
    }
  EXPECT_GT(refused, 0);
  EXPECT_GT(cut, 0);
  EXPECT_GT(whole, 0);
  EXPECT_GT(stopped, 0);
}

// That the simulator finds what it is for.
TEST(Simulator, FindsThatTheOwnShardFirstWouldStop) {
  Simulator::World world = world_of(Op::kScatter, 3, 2, 1, Form::k256Beside, 2);
  world.schedule = [](int32_t rank) {
    return gather_schedule({3, rank, 300, 700}, shape_of(Form::k256Beside), 2, 0);
  };
  EXPECT_EQ(Simulator(world, 1).run(), "no block can go on");
}

TEST(Simulator, FindsAShareThatNobodyMultiplies) {
  Simulator::World world = world_of(Op::kScatter, 2, 7, 1, Form::k256Beside, 2);
  world.stages = 1000;
  world.most_sharers = kMostBlocks;
  const Split split = split_of(world.schedule(0).num_units(), 7, 1000, kMostBlocks);
  ASSERT_GT(split.sharers, 1);
  world.idle_block = split.sharers - 2;
  EXPECT_EQ(Simulator(world, 1).run(), "no block can go on");
}

TEST(Simulator, FindsThatOneSlotNeedsABarrierBetweenCalls) {
  Simulator::World world = world_of(Op::kScatter, 4, 3, 6, Form::k128Beside, 2);
  world.slots = 1;
  int found = 0;
  for (uint32_t seed = 0; seed < 100; ++seed)
    found += Simulator(world, seed).run() == "a part was written over before it was read" ? 1 : 0;
  EXPECT_GT(found, 0);
}

}  // namespace
}  // namespace braid::overlap
