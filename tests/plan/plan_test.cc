#include "plan/plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "plan/solve.h"

namespace braid::plan {
namespace {

TEST(OpName, RoundTrips) {
  for (const Op op : kAllOps) EXPECT_EQ(parse_op(op_name(op)).value(), op);
}

TEST(OpName, OutsideTheEnumIsUnknown) { EXPECT_STREQ(op_name(static_cast<Op>(9)), "unknown"); }

TEST(OpName, UnknownTextIsRefusedByName) {
  const Status status = parse_op("all_gathr").status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("all_gathr"), std::string::npos);
}

TEST(SizeClass, HoldsItsPowerOfTwoAndWhatLiesBelow) {
  EXPECT_EQ(size_class(0), 0);
  EXPECT_EQ(size_class(1), 0);
  EXPECT_EQ(size_class(2), 1);
  EXPECT_EQ(size_class(UINT64_MAX), 64);
  for (int k = 2; k < 64; ++k) {
    const uint64_t top = uint64_t{1} << k;
    EXPECT_EQ(size_class(top), k);
    EXPECT_EQ(size_class(top - 1), k);
    EXPECT_EQ(size_class(top + 1), k + 1);
  }
}

TEST(BlockBytes, IsARanksPartRoundedUp) {
  EXPECT_EQ(block_bytes({Op::kAllGather, 1000, 3}), 334u);
  EXPECT_EQ(block_bytes({Op::kAllReduce, 999, 3}), 333u);
  EXPECT_EQ(block_bytes({Op::kBroadcast, 1000, 3}), 1000u);
  EXPECT_EQ(block_bytes({Op::kAllToAll, 1000, 1}), 1000u);
  EXPECT_EQ(block_bytes({Op::kReduceScatter, 0, 4}), 0u);
}

uint64_t cells_of(const std::vector<uint64_t>& cut, size_t link) {
  return cut[link + 1] - cut[link];
}

void expect_lawful(uint64_t num_cells, const Shares& shares) {
  const std::vector<uint64_t> cut = cut_cells(num_cells, shares);
  ASSERT_EQ(cut.size(), shares.size() + 1);
  EXPECT_EQ(cut.front(), 0u);
  EXPECT_EQ(cut.back(), num_cells);
  for (size_t i = 0; i < shares.size(); ++i) {
    ASSERT_LE(cut[i], cut[i + 1]);
    if (shares[i] == 0) {
      EXPECT_EQ(cells_of(cut, i), 0u);
    }
    const long double exact = static_cast<long double>(num_cells) * shares[i] / kWhole;
    EXPECT_LT(std::abs(static_cast<long double>(cells_of(cut, i)) - exact), 1.0L) << "link " << i;
  }
  EXPECT_EQ(cut, cut_cells(num_cells, shares)) << "not deterministic";
}

Shares random_shares(std::mt19937_64& rng, size_t num_links) {
  std::vector<double> weights;
  std::exponential_distribution<double> weight(1);
  for (size_t i = 0; i < num_links; ++i) weights.push_back(rng() % 4 == 0 ? 0 : weight(rng));
  return to_shares(weights);
}

TEST(CutCells, IsLawfulForRandomShares) {
  std::mt19937_64 rng(7);
  for (int round = 0; round < 2000; ++round) {
    const size_t num_links = 1 + rng() % 64;
    const uint64_t num_cells = round % 3 == 0 ? rng() % 8 : rng() >> (rng() % 63 + 1);
    expect_lawful(num_cells, random_shares(rng, num_links));
  }
}

TEST(CutCells, ExtremeSharesAndCounts) {
  const std::vector<Shares> extremes = {
      {kWhole}, {0, kWhole, 0}, {1, kWhole - 1}, {kWhole - 2, 1, 1}, Shares(64, kWhole / 64)};
  for (const Shares& shares : extremes)
    for (const uint64_t cells : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{63},
                                 uint64_t{65537}, UINT64_MAX / 2, UINT64_MAX})
      expect_lawful(cells, shares);
}

TEST(CutCells, ALoneCellGoesToTheLargestShareWhereverItLies) {
  // A cut at rounded running sums would hand it to the middle link, which is worth 1 %.
  EXPECT_EQ(cut_cells(1, Shares{33000, 656, 31880}), (std::vector<uint64_t>{0, 1, 1, 1}));
  EXPECT_EQ(cut_cells(1, Shares{31880, 656, 33000}), (std::vector<uint64_t>{0, 0, 0, 1}));
}

TEST(CutCells, MoreShareNeverMeansFewerCells) {
  uint64_t before = 0;
  for (uint32_t share = 0; share <= kWhole; share += 64) {
    const uint64_t cells = cells_of(cut_cells(1000, Shares{share, kWhole - share}), 0);
    EXPECT_GE(cells, before);
    before = cells;
  }
  EXPECT_EQ(before, 1000u);
}

TEST(CutCellsDeathTest, SharesThatDoNotSumAbort) {
  EXPECT_DEATH(cut_cells(10, Shares{100, 200}), "2 shares sum to 300");
  EXPECT_DEATH(cut_cells(10, Shares{}), "0 shares sum to 0");
}

TEST(ChooseCellBytes, IsAlignedAndWithinThePiece) {
  for (uint64_t block = 0; block < (uint64_t{64} << 20); block = block * 3 / 2 + 17)
    for (const uint32_t piece : {64u, 100u, 4096u, 65536u, 1u << 20}) {
      const uint32_t cell = choose_cell_bytes(block, piece);
      EXPECT_GT(cell, 0u);
      EXPECT_LE(cell, piece);
      EXPECT_EQ(cell % 64, 0u);
    }
}

TEST(ChooseCellBytes, GrowsWithTheBlockUpToTheWholePiece) {
  EXPECT_EQ(choose_cell_bytes(0, 65536), 4096u);
  EXPECT_EQ(choose_cell_bytes(100, 65536), 4096u);
  EXPECT_EQ(choose_cell_bytes(256 << 10, 65536), 4096u);
  EXPECT_EQ(choose_cell_bytes(1 << 20, 65536), 16384u);
  EXPECT_EQ(choose_cell_bytes(4 << 20, 65536), 65536u);
  EXPECT_EQ(choose_cell_bytes(uint64_t{5} << 30, 65536), 65536u);
  EXPECT_EQ(choose_cell_bytes(UINT64_MAX, 65536), 65536u);
}

TEST(ChooseCellBytes, LeavesEnoughCellsForFineShares) {
  for (uint64_t block = 256 << 10; block <= (uint64_t{256} << 20); block *= 2)
    EXPECT_GE(block / choose_cell_bytes(block, 65536), 64u) << block;
}

}  // namespace
}  // namespace braid::plan
