#include "plan/x16.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/units.h"
#include "plan/solve.h"

namespace braid::plan {
namespace {

using namespace braid::literals;
using fabric::Link;
using fabric::LinkKind;

Link link(const char* name, LinkKind kind, double rate_gbps) {
  Link made;
  made.name = name;
  made.kind = kind;
  made.rate_gbps = rate_gbps;
  return made;
}

/// NVLink, the host path and a NIC behind one x16, as fabric::gpu_links() tells them.
std::vector<Link> links(double pcie_gbps, double nic_gbps, double x16_gbps) {
  std::vector<Link> all = {link("nvlink", LinkKind::kNvlink, 390),
                           link("pcie", LinkKind::kPcie, pcie_gbps),
                           link("rdma", LinkKind::kRdma, nic_gbps)};
  all[1].can_multicast = true;
  for (const size_t i : {1, 2}) {
    all[i].shares_with = "gpu-pcie";
    all[i].resource_gbps = x16_gbps;
  }
  return all;
}

constexpr Request kGather{Op::kAllGather, 512 << 20, 2};

/// GB/s that a part of all ranks' blocks is, in the time that the facts give the call.
double rate_of(uint32_t parts, const std::vector<Link>& facts) {
  const auto costs = costs_from_facts(kGather, facts);
  const double ns = equal_finish(static_cast<double>(kGather.bytes), costs, 0).finish_ns;
  return static_cast<double>(kGather.bytes) / 2 * parts / kWhole / ns;
}

TEST(X16, GivesTheNicWhatTheHostPathLeaves) {
  const auto facts = links(40, 48, 55);
  const auto pcie = static_cast<uint32_t>(0.09 * kWhole);
  const uint32_t room = rdma_room(kGather, facts, pcie);
  EXPECT_GT(room, 0U);
  EXPECT_LE(rate_of(pcie, facts) + rate_of(room, facts), 55.01);
  EXPECT_GE(rate_of(pcie, facts) + rate_of(room, facts), 54.5);
}

TEST(X16, BothTogetherNeverExceedIt) {
  for (const double nic : {12.5, 25.0, 50.0, 100.0})
    for (const double x16 : {27.0, 55.0, 110.0})
      for (uint32_t pcie = 0; pcie <= kWhole; pcie += kWhole / 32) {
        const auto facts = links(0.7 * x16, nic, x16);
        const uint32_t room = rdma_room(kGather, facts, pcie);
        EXPECT_LE(pcie + room, kWhole);
        EXPECT_LE(rate_of(room, facts), nic * 1.001);
        if (room == 0) continue;
        EXPECT_LE(rate_of(pcie, facts) + rate_of(room, facts), std::max(x16, nic) * 1.001)
            << "nic " << nic << " x16 " << x16 << " pcie " << pcie;
      }
}

TEST(X16, IsFullWhenTheHostPathFillsIt) {
  const auto facts = links(55, 48, 55);
  EXPECT_EQ(rdma_room(kGather, facts, kWhole / 4), 0U);
}

TEST(X16, AllIsTheNicsWithoutAHostPath) {
  const auto facts = links(40, 48, 55);
  EXPECT_NEAR(rate_of(rdma_room(kGather, facts, 0), facts), 48, 0.1);
}

// Host memory is written once for all; a NIC sends to every reader.
TEST(X16, ABroadcastToManyLeavesLittle) {
  const auto facts = links(40, 48, 55);
  const uint32_t two = rdma_room({Op::kBroadcast, 512 << 20, 2}, facts, 0);
  const uint32_t eight = rdma_room({Op::kBroadcast, 512 << 20, 8}, facts, 0);
  EXPECT_GT(eight, 0U);
  EXPECT_NEAR(eight, two / 7.0, 2);
}

TEST(X16, WithoutFactsThereIsRoomForAll) {
  EXPECT_EQ(rdma_room(kGather, {}, kWhole / 4), kWhole - kWhole / 4);
  EXPECT_EQ(rdma_room(kGather, {}, kWhole + 1), 0U);
}

}  // namespace
}  // namespace braid::plan
