#include "comm/device/links/nic.h"

#include <gtest/gtest.h>

#include "coll/ranks.h"
#include "fabric/merge.h"
#include "support/fake_machine.h"
#include "sys/fabric/fake.h"

namespace braid::comm {
namespace {

/// 8 ranks on a server with 8 GPUs and a NIC for every two of them.
fabric::Fabric server(test::FakeMachine& machine, size_t num_ranks = 8) {
  return fabric::merge(std::vector<fabric::Node>(num_ranks, machine.node()));
}

std::string gpu_pci(int gpu) { return fmt::format("0000:{:02X}:00.0", 0x10 + 0x10 * gpu); }

/// With `auto` unless the options say otherwise.
NicChoice chosen(test::Options options, const fabric::Fabric& fabric, int rank) {
  options.insert({"BRAID_GPU_RDMA", "auto"});
  const auto choice = choose_nic(test::make_config(options), fabric, rank, gpu_pci(rank));
  EXPECT_TRUE(choice.ok()) << choice.status().to_string();
  return choice.ok() ? choice.value() : NicChoice{"failed", "", "", "", false};
}

TEST(NicChoosing, AutoTakesTheNearest) {
  test::FakeMachine machine;
  const fabric::Fabric fabric = server(machine);
  for (int rank = 0; rank < 8; ++rank) {
    const NicChoice nic = chosen({}, fabric, rank);
    EXPECT_EQ(nic.why_off, "");
    EXPECT_EQ(nic.name, fmt::format("mlx5_{}", rank / 2));
    EXPECT_EQ(nic.provider, "verbs");
    EXPECT_EQ(nic.address, fmt::format("10.0.{}.1", rank / 2));
    EXPECT_TRUE(nic.is_real);
  }
}

TEST(NicChoosing, ANicThatIsDownIsNone) {
  test::FakeMachine machine;
  machine.set_nic_down(0);
  EXPECT_NE(chosen({}, server(machine), 0).name, "mlx5_0");
  for (int nic = 1; nic < 4; ++nic) machine.set_nic_down(nic);
  const NicChoice none = chosen({}, server(machine), 0);
  EXPECT_NE(none.why_off.find("no NIC (server-host-a"), std::string::npos) << none.why_off;
}

TEST(NicChoosing, RanksTakeEquallyNearOnesInTurn) {
  test::FakeMachine machine;
  fabric::Node node = machine.node();
  for (fabric::Path& path : node.gpu_nic_paths) path.kind = fabric::PathKind::kNode;
  const fabric::Fabric fabric = fabric::merge({node, node, node, node, node});
  std::vector<std::string> names;
  for (int rank = 0; rank < 5; ++rank) names.push_back(chosen({}, fabric, rank).name);
  EXPECT_EQ(names, (std::vector<std::string>{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_0"}));
}

// Sockets on loopback are there for tests: only `on` takes them.
TEST(NicChoosing, SocketsAreNoNic) {
  fabric::Node node;
  node.name = "laptop";
  node.nics.push_back({"eth0", "", -1, 1.25, true, "tcp", "10.1.1.1"});
  const fabric::Fabric fabric = fabric::merge({node, node});
  EXPECT_NE(chosen({}, fabric, 0).why_off.find("laptop"), std::string::npos);
  const NicChoice on = chosen({{"BRAID_GPU_RDMA", "on"}}, fabric, 1);
  EXPECT_EQ(on.why_off, "");
  EXPECT_EQ(on.provider, "tcp");
  EXPECT_EQ(on.address, "127.0.0.1");
  EXPECT_FALSE(on.is_real);
  const NicChoice second =
      chosen({{"BRAID_GPU_RDMA", "on"}, {"BRAID_RDMA_ADDRS", "10.1.1.1,10.2.1.1"}}, fabric, 1);
  EXPECT_EQ(second.address, "10.1.1.1");
}

TEST(NicChoosing, OnTakesARealOneUnlessAProviderIsNamed) {
  test::FakeMachine machine;
  const fabric::Fabric fabric = server(machine);
  EXPECT_EQ(chosen({{"BRAID_GPU_RDMA", "on"}}, fabric, 2).name, "mlx5_1");
  const NicChoice named =
      chosen({{"BRAID_GPU_RDMA", "on"}, {"BRAID_RDMA_PROVIDER", "tcp"}}, fabric, 2);
  EXPECT_EQ(named.name, "tcp at 127.0.0.1");
}

TEST(NicChoosing, OneNodeWithoutANicIsOffForAll) {
  test::FakeMachine machine;
  fabric::Node bare;
  bare.host_id = "host-b";
  bare.name = "bare";
  const fabric::Fabric fabric = fabric::merge({machine.node(), bare});
  for (const int rank : {0, 1})
    EXPECT_NE(chosen({}, fabric, rank).why_off.find("bare"), std::string::npos);
}

TEST(NicChoosing, OffIsOffAndOtherWordsAreRefused) {
  test::FakeMachine machine;
  EXPECT_EQ(choose_nic(test::make_config({}), server(machine), 0, gpu_pci(0)).value().why_off,
            "BRAID_GPU_RDMA is off");  // the default
  EXPECT_EQ(chosen({{"BRAID_GPU_RDMA", "off"}}, server(machine), 0).why_off,
            "BRAID_GPU_RDMA is off");
  const auto refused = choose_nic(test::make_config({{"BRAID_GPU_RDMA", "maybe"}}), {}, 0, "");
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("'maybe'"), std::string::npos);
}

TEST(NicReach, IsAskedOfTheProvider) {
  const NicChoice nic{"", "fake", "127.0.0.1", "fake0", true};
  for (const bool reaches : {false, true}) {
    sys::FakeFabric fabric({.reaches_gpus = reaches});
    EXPECT_EQ(reaches_gpus(fabric, nic), reaches);
    const NicChoice other{"", "fake", "10.0.0.1", "fake1", true};
    EXPECT_FALSE(reaches_gpus(fabric, other));
  }
  EXPECT_EQ(how_in_words(nic, false), "pinned bounce: NIC fake0 cannot reach GPU memory");
  EXPECT_NE(how_in_words(nic, true).find("not used yet"), std::string::npos);
}

}  // namespace
}  // namespace braid::comm
