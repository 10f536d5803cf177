#include "plan/wire.h"

#include <gtest/gtest.h>

#include <cmath>

namespace braid::plan {
namespace {

constexpr uint64_t kWireBytes = 8000;
Request on8(Op op) { return {op, kWireBytes, 8}; }

fabric::Link link_of(double rate_gbps, bool multicast) {
  fabric::Link link;
  link.rate_gbps = rate_gbps;
  link.can_multicast = multicast;
  return link;
}

TEST(Wire, EgressOfUnicastLinks) {
  EXPECT_DOUBLE_EQ(egress_bytes(on8(Op::kAllGather), false), 7000);
  EXPECT_DOUBLE_EQ(egress_bytes(on8(Op::kReduceScatter), false), 7000);
  EXPECT_DOUBLE_EQ(egress_bytes(on8(Op::kAllToAll), false), 7000);
  EXPECT_DOUBLE_EQ(egress_bytes(on8(Op::kAllReduce), false), 14000);
  EXPECT_DOUBLE_EQ(egress_bytes(on8(Op::kBroadcast), false), 8000);
}

TEST(Wire, MulticastHelpsWhereAllPeersGetTheSameBytes) {
  EXPECT_DOUBLE_EQ(egress_bytes(on8(Op::kAllGather), true), 1000);
  EXPECT_DOUBLE_EQ(egress_bytes(on8(Op::kAllReduce), true), 8000);
  EXPECT_DOUBLE_EQ(egress_bytes(on8(Op::kReduceScatter), true), 7000);
  EXPECT_DOUBLE_EQ(egress_bytes(on8(Op::kAllToAll), true), 7000);
  EXPECT_DOUBLE_EQ(egress_bytes(on8(Op::kBroadcast), true), 8000);
}

TEST(Wire, Ingress) {
  EXPECT_DOUBLE_EQ(ingress_bytes(on8(Op::kAllGather)), 7000);
  EXPECT_DOUBLE_EQ(ingress_bytes(on8(Op::kAllReduce)), 14000);
  EXPECT_DOUBLE_EQ(ingress_bytes(on8(Op::kBroadcast)), 8000);
}

TEST(Wire, OneRankMovesNothing) {
  for (const Op op : kAllOps) {
    EXPECT_EQ(egress_bytes({op, kWireBytes, 1}, false), 0);
    EXPECT_EQ(ingress_bytes({op, kWireBytes, 1}), 0);
    EXPECT_TRUE(std::isinf(algbw_gbps({op, kWireBytes, 1}, link_of(10, false))));
  }
}

TEST(Algbw, FollowsTheRankCount) {
  EXPECT_NEAR(algbw_gbps({Op::kAllGather, kWireBytes, 2}, link_of(100, false)), 200, 1e-9);
  EXPECT_NEAR(algbw_gbps(on8(Op::kAllGather), link_of(100, false)), 100 * 8.0 / 7, 1e-9);
  EXPECT_NEAR(algbw_gbps(on8(Op::kAllReduce), link_of(100, false)), 100 * 4.0 / 7, 1e-9);
  EXPECT_NEAR(algbw_gbps(on8(Op::kBroadcast), link_of(100, true)), 100, 1e-9);
}

TEST(Algbw, IngressLimitsAMulticastLinkToo) {
  EXPECT_NEAR(algbw_gbps(on8(Op::kAllGather), link_of(100, true)), 100 * 8.0 / 7, 1e-9);
}

TEST(Algbw, DoesNotDependOnTheSizeAndNeedsARate) {
  EXPECT_DOUBLE_EQ(algbw_gbps({Op::kAllGather, 0, 8}, link_of(5, false)),
                   algbw_gbps(on8(Op::kAllGather), link_of(5, false)));
  EXPECT_EQ(algbw_gbps(on8(Op::kAllGather), link_of(0, false)), 0);
  EXPECT_EQ(algbw_gbps(on8(Op::kAllGather), link_of(std::nan(""), false)), 0);
}

}  // namespace
}  // namespace braid::plan
