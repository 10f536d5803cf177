#include "plan/decide.h"

#include <gtest/gtest.h>

#include <numeric>

#include "fabric/merge.h"
#include "support/fake_machine.h"

namespace braid::plan {
namespace {

double fraction(const Plan& plan, size_t link) {
  return static_cast<double>(plan.shares[link]) / kWhole;
}

fabric::Link link_of(std::string name, double rate_gbps, int64_t latency_ns = 0) {
  fabric::Link link;
  link.name = std::move(name);
  link.rate_gbps = rate_gbps;
  link.latency_ns = latency_ns;
  return link;
}

std::vector<fabric::Link> rails() {
  return {link_of("a", 0.4), link_of("b", 0.2), link_of("c", 0.1)};
}

TuningEntry entry_of(uint64_t bytes, Shares shares, double measured_ns, double best_single_ns) {
  return {Op::kAllGather, 4, bytes, std::move(shares), 8192, measured_ns, 1, best_single_ns};
}

const Request kRequest = {Op::kAllGather, 64 << 20, 4};

TEST(Decide, ByFactsAlone) {
  const Plan plan = decide(kRequest, rails(), {});
  EXPECT_EQ(plan.request, kRequest);
  EXPECT_NEAR(fraction(plan, 0), 4.0 / 7, 1e-3);
  EXPECT_EQ(plan.cell_bytes, choose_cell_bytes(16 << 20, 65536));
  EXPECT_GT(plan.predicted_ns, 0);
  EXPECT_EQ(plan.why.find("by the links' facts"), 0u) << plan.why;
}

TEST(Decide, OneRankZeroBytesAndOneLinkAreSimple) {
  EXPECT_EQ(decide({Op::kAllReduce, 1 << 20, 1}, rails(), {}).shares, (Shares{kWhole, 0, 0}));
  EXPECT_EQ(decide({Op::kAllReduce, 0, 8}, rails(), {}).shares, (Shares{kWhole, 0, 0}));
  const Plan plan = decide(kRequest, std::vector<fabric::Link>{link_of("a", 1)}, {});
  EXPECT_EQ(plan.shares, (Shares{kWhole}));
  EXPECT_GT(plan.predicted_ns, 0);
}

TEST(Decide, SaysWhatLinksTakeAloneByTheCurvesThatDecide) {
  TuningTable table("h", {"a", "b", "c"});
  for (const RatePoint point : {RatePoint{1 << 20, 4e6}, RatePoint{64 << 20, 2e6}})
    ASSERT_TRUE(table.rates().add(Op::kAllGather, 4, 0, point));
  ASSERT_TRUE(table.rates().add(Op::kAllGather, 4, 1, {64 << 20, 9e6}));
  const Plan plan = decide(kRequest, rails(), table);
  EXPECT_EQ(plan.alone_ns, (std::vector<double>{4e6, 9e6, 0}));  // no larger part is faster
  EXPECT_EQ(decide({Op::kAllReduce, 64 << 20, 4}, rails(), table).alone_ns,
            (std::vector<double>{0, 0, 0}));
  EXPECT_TRUE(decide(kRequest, rails(), {}).alone_ns.empty());
}

TEST(Decide, TheTunedEntryOfTheClassWins) {
  TuningTable table("h", {"a", "b", "c"});
  table.put(entry_of(64 << 20, {30000, 30000, 5536}, 8e6, 9e6));
  const Plan plan = decide({Op::kAllGather, 48 << 20, 4}, rails(), table);
  EXPECT_EQ(plan.shares, (Shares{30000, 30000, 5536}));
  EXPECT_EQ(plan.cell_bytes, 8192u);
  EXPECT_NEAR(plan.predicted_ns, 6e6, 1);
  EXPECT_EQ(plan.why.find("tuned at"), 0u) << plan.why;
}

TEST(Decide, AMeasuredGainUnderTwoPercentIsTheBestLinkAlone) {
  TuningTable table("h", {"a", "b", "c"});
  table.put(entry_of(64 << 20, {30000, 30000, 5536}, 8e6, 8.1e6));
  const Plan plan = decide(kRequest, rails(), table);
  EXPECT_EQ(plan.shares, (Shares{0, kWhole, 0}));
  EXPECT_NE(plan.why.find("gain 1.2 %"), std::string::npos) << plan.why;
  table.put(entry_of(64 << 20, {30000, 30000, 5536}, 8e6, 7e6));
  EXPECT_EQ(decide(kRequest, rails(), table).shares, (Shares{0, kWhole, 0}))
      << "worse than one link";
}

TEST(Decide, ATableOfOtherLinksDoesNotCount) {
  TuningTable table("h", {"a", "c", "b"});
  table.put(entry_of(64 << 20, {30000, 30000, 5536}, 8e6, 9e6));
  EXPECT_EQ(decide(kRequest, rails(), table).shares, decide(kRequest, rails(), {}).shares);
}

TEST(Decide, ATunedCellThatDoesNotFitThePiecesIsChosenAnew) {
  TuningTable table("h", {"a", "b", "c"});
  table.put(entry_of(64 << 20, {30000, 30000, 5536}, 8e6, 9e6));
  EXPECT_EQ(decide(kRequest, rails(), table, {.max_piece_bytes = 4096}).cell_bytes, 4096u);
}

// Link b has the rate of a but 400 us more latency. Tuned at 256 MiB only, a message of 512 KiB
// must not get that split.
TEST(Decide, AnUntunedClassIsSolvedFromTheRatesAndNotCopied) {
  const std::vector<fabric::Link> links = {link_of("a", 3, 1000), link_of("b", 3, 1000)};
  TuningTable table("h", {"a", "b"});
  table.put({Op::kAllGather, 4, 256 << 20, {kWhole / 2, kWhole / 2}, 0, 3e7, 0, 6e7});
  for (uint64_t bytes = 4096; bytes <= (128 << 20); bytes *= 2) {
    table.rates().add(Op::kAllGather, 4, 0, {bytes, 1e3 + static_cast<double>(bytes) / 4});
    table.rates().add(Op::kAllGather, 4, 1, {bytes, 4e5 + static_cast<double>(bytes) / 4});
  }
  EXPECT_EQ(decide({Op::kAllGather, 512 << 10, 4}, links, table).shares, (Shares{kWhole, 0}));
  const Plan large = decide({Op::kAllGather, 64 << 20, 4}, links, table);
  EXPECT_GT(large.shares[1], kWhole * 0.45);
  EXPECT_LT(large.shares[1], large.shares[0]);
  EXPECT_EQ(large.why.find("by measured rates"), 0u) << large.why;
  EXPECT_EQ(decide({Op::kAllToAll, 64 << 20, 4}, links, table).why.find("by the links' facts"), 0u);
}

TEST(Decide, SmallMessagesUseNoMoreLinksThanTheyHaveCells) {
  for (uint64_t bytes = 1; bytes <= (64 << 20); bytes *= 2) {
    const Plan plan = decide({Op::kAllGather, bytes, 4}, rails(), {});
    const uint64_t cells = (block_bytes(plan.request) + plan.cell_bytes - 1) / plan.cell_bytes;
    const auto users =
        std::count_if(plan.shares.begin(), plan.shares.end(), [](uint32_t s) { return s > 0; });
    EXPECT_LE(static_cast<uint64_t>(users), cells) << bytes;
  }
}

TEST(Decide, EveryOperationAndSizeIsLawful) {
  for (const Op op : kAllOps)
    for (int ranks = 1; ranks <= 64; ranks *= 2)
      for (uint64_t bytes = 1; bytes < (uint64_t{1} << 40); bytes = bytes * 3 + 1) {
        const Plan plan = decide({op, bytes, ranks}, rails(), {});
        EXPECT_EQ(std::accumulate(plan.shares.begin(), plan.shares.end(), uint64_t{0}), kWhole);
        EXPECT_FALSE(plan.why.empty());
      }
}

// A whole server without hardware: discover, merge, plan.
class FakedServer : public ::testing::Test {
 protected:
  std::vector<fabric::Link> links_of(int num_ranks) {
    return fabric::gpu_links(
        fabric::merge(std::vector<fabric::Node>(static_cast<size_t>(num_ranks), machine_.node())));
  }
  braid::test::FakeMachine machine_;
};

TEST_F(FakedServer, AllGatherOn8GpusUsesNvlinkAndTheHostPath) {
  const std::vector<fabric::Link> links = links_of(8);
  const Plan plan = decide({Op::kAllGather, uint64_t{256} << 20, 8}, links, {});
  ASSERT_EQ(links[0].name, "nvlink");
  ASSERT_EQ(links[1].name, "pcie");
  ASSERT_EQ(links[2].name, "rdma");
  EXPECT_GT(fraction(plan, 0), 0.85);
  EXPECT_LT(fraction(plan, 0), 0.93);
  EXPECT_GT(fraction(plan, 1), 0.05);
  // The two share the x16: together they carry no more than it does.
  const double seconds = plan.predicted_ns * 1e-9;
  const double wire_gb = (fraction(plan, 1) + fraction(plan, 2)) * 0.2684354 * 7 / 8;
  EXPECT_LE(wire_gb / seconds, 55.5);
  const double nvlink_alone = 0.2684354 * 7 / 8 / 390 * 1e9 + 5e3;
  EXPECT_LT(plan.predicted_ns, 0.95 * nvlink_alone);
}

TEST_F(FakedServer, SmallMessagesStayOnNvlink) {
  const Plan plan = decide({Op::kAllGather, 4 << 20, 8}, links_of(8), {});
  EXPECT_EQ(plan.shares[0], kWhole);
}

TEST_F(FakedServer, WithoutNicsTheHostPathRemains) {
  for (int nic = 0; nic < 4; ++nic) machine_.set_nic_down(nic);
  const std::vector<fabric::Link> links = links_of(8);
  ASSERT_EQ(links.size(), 2u);
  const Plan plan = decide({Op::kAllGather, uint64_t{1} << 30, 8}, links, {});
  EXPECT_NEAR(fraction(plan, 1), 40.0 / 430, 0.02);
}

// The CPU twin without pacing: one core does all copies, so shm carries all until something is
// measured.
TEST(CpuTwin, UnpacedCopiesDoNotAddUp) {
  using fabric::LinkKind;
  const std::vector<fabric::Link> links = {assumed_link(LinkKind::kShm, "shm"),
                                           assumed_link(LinkKind::kStaged, "staged")};
  EXPECT_EQ(decide(kRequest, links, {}).shares, (Shares{kWhole, 0}));
}

// Rails of unknown rate start level: a search or a balancer must have something to measure on each.
TEST(CpuTwin, RailsOfUnknownRateStartLevel) {
  using fabric::LinkKind;
  const std::vector<fabric::Link> rails = {assumed_link(LinkKind::kRdma, "rdma0"),
                                           assumed_link(LinkKind::kRdma, "rdma1"),
                                           assumed_link(LinkKind::kRdma, "rdma2")};
  const Plan plan = decide(kRequest, rails, {});
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(fraction(plan, i), 1.0 / 3, 0.01);
}

TEST(CpuTwin, PacedLinksAddUp) {
  using fabric::LinkKind;
  const std::vector<fabric::Link> paced = {paced_link(LinkKind::kShm, "shm", 0.4, 0),
                                           paced_link(LinkKind::kStaged, "staged", 0.2, 0),
                                           paced_link(LinkKind::kRdma, "rdma", 0.1, 0)};
  const Plan plan = decide(kRequest, paced, {});
  EXPECT_NEAR(fraction(plan, 0), 4.0 / 7, 0.01);
  EXPECT_NEAR(fraction(plan, 2), 1.0 / 7, 0.01);
}

}  // namespace
}  // namespace braid::plan
