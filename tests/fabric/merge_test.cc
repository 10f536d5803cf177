#include "fabric/merge.h"

#include <gtest/gtest.h>

#include "support/fake_machine.h"

namespace braid::fabric {
namespace {

using braid::test::FakeMachine;

Fabric group_on(FakeMachine& machine, const std::vector<std::string>& host_of_rank) {
  std::vector<Node> nodes;
  for (const std::string& host : host_of_rank) nodes.push_back(machine.node(host));
  return merge(nodes);
}

const Link* find(const std::vector<Link>& links, const std::string& name) {
  for (const Link& link : links)
    if (link.name == name) return &link;
  return nullptr;
}

TEST(Merge, RanksOfOneHostShareANode) {
  FakeMachine machine;
  const Fabric fabric = group_on(machine, {"a", "b", "a", "b", "c"});
  EXPECT_EQ(fabric.nodes.size(), 3u);
  EXPECT_EQ(fabric.node_of_rank, (std::vector<int>{0, 1, 0, 1, 2}));
  EXPECT_EQ(fabric.nodes[1].host_id, "b");
  EXPECT_FALSE(is_one_host(fabric));
  EXPECT_TRUE(is_one_host(group_on(machine, {"a", "a"})));
  EXPECT_FALSE(is_one_host(merge({})));
}

TEST(GpuLinks, EightGpusOfOneServer) {
  FakeMachine machine;
  const std::vector<Link> links = gpu_links(group_on(machine, std::vector<std::string>(8, "a")));
  ASSERT_EQ(links.size(), 3u);
  EXPECT_NEAR(find(links, "nvlink")->rate_gbps, 390, 1);
  EXPECT_TRUE(find(links, "nvlink")->shares_with.empty());
  EXPECT_NEAR(find(links, "pcie")->rate_gbps, 40, 1);
  EXPECT_TRUE(find(links, "pcie")->can_multicast);
  EXPECT_NEAR(find(links, "rdma")->rate_gbps, 48.5 / 2, 0.1) << "two GPUs to a NIC";
  EXPECT_EQ(find(links, "rdma")->shares_with, find(links, "pcie")->shares_with)
      << "both go over the GPU's x16";
  EXPECT_NEAR(find(links, "rdma")->resource_gbps, 55, 1);
}

TEST(GpuLinks, FourGpusHaveTwoToANicStill) {
  FakeMachine machine;
  const std::vector<Link> links = gpu_links(group_on(machine, std::vector<std::string>(4, "a")));
  EXPECT_NEAR(find(links, "rdma")->rate_gbps, 48.5 / 2, 0.1);
}

TEST(GpuLinks, TwoServersHaveTheNicAlone) {
  FakeMachine machine;
  const std::vector<Link> links = gpu_links(group_on(machine, {"a", "a", "b", "b"}));
  ASSERT_EQ(links.size(), 1u);
  EXPECT_EQ(links[0].kind, LinkKind::kRdma);
}

TEST(GpuLinks, ANicThatIsDownSendsItsGpusToTheNextOne) {
  FakeMachine machine;
  machine.set_nic_down(0);
  const Node node = machine.node();
  EXPECT_EQ(nearest_nic(node, 0), 1) << "on the same socket";
  EXPECT_EQ(nearest_nic(node, 7), 3);
  const std::vector<Link> links = gpu_links(group_on(machine, std::vector<std::string>(8, "a")));
  EXPECT_NEAR(find(links, "rdma")->rate_gbps, 48.5 / 4, 0.1)
      << "four GPUs to a NIC, the slowest counts";
}

TEST(GpuLinks, AllNicsDownIsNoRdma) {
  FakeMachine machine;
  for (int nic = 0; nic < 4; ++nic) machine.set_nic_down(nic);
  EXPECT_EQ(nearest_nic(machine.node(), 0), -1);
  const std::vector<Link> links = gpu_links(group_on(machine, std::vector<std::string>(8, "a")));
  EXPECT_EQ(find(links, "rdma"), nullptr);
  EXPECT_NE(find(links, "nvlink"), nullptr);
}

TEST(GpuLinks, MoreRanksThanGpusHaveNone) {
  FakeMachine machine(2);
  EXPECT_TRUE(gpu_links(group_on(machine, {"a", "a", "a"})).empty());
  EXPECT_TRUE(gpu_links(merge({})).empty());
}

TEST(AssumedLink, CopiesShareTheCoreAndRailsDoNot) {
  for (const LinkKind kind : {LinkKind::kShm, LinkKind::kStaged, LinkKind::kRdma}) {
    const Link link = assumed_link(kind, "x");
    EXPECT_GT(link.rate_gbps, 0);
    EXPECT_EQ(link.source, Source::kAssumed);
    EXPECT_EQ(link.shares_with, kind == LinkKind::kRdma ? "" : "core");
    EXPECT_EQ(link.can_multicast, kind == LinkKind::kStaged);
  }
}

TEST(PacedLink, IsLimitedByItsPaceAlone) {
  const Link link = paced_link(LinkKind::kShm, "shm", 0.4, 50'000);
  EXPECT_DOUBLE_EQ(link.rate_gbps, 0.4);
  EXPECT_GE(link.latency_ns, 50'000);
  EXPECT_EQ(link.source, Source::kPaced);
  EXPECT_TRUE(link.shares_with.empty());
  EXPECT_EQ(paced_link(LinkKind::kShm, "shm", 0, 50'000).shares_with, "core")
      << "latency alone limits no rate";
}

}  // namespace
}  // namespace braid::fabric
