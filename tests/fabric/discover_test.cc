#include "fabric/discover.h"

#include <gtest/gtest.h>

#include "support/fake_machine.h"

namespace braid::fabric {
namespace {

using braid::test::FakeMachine;
using braid::test::ipv4;

const Path* path_between(const std::vector<Path>& paths, int from, int to) {
  for (const Path& path : paths)
    if (path.from == from && path.to == to) return &path;
  return nullptr;
}

TEST(Discover, AServerOfEightGpus) {
  FakeMachine machine;
  const Discovery found = discover(machine.world());
  EXPECT_TRUE(found.gaps.empty()) << found.gaps[0];
  const Node& node = found.node;
  EXPECT_EQ(node.name, "server-host-a");
  ASSERT_EQ(node.cpus.size(), 2u);
  EXPECT_EQ(node.cpus[1].num_cores, 48) << "hardware threads of one core count once";
  EXPECT_EQ(node.cpus[0].memory_bytes, uint64_t{1056784384} * 1024);
  ASSERT_EQ(node.gpus.size(), 8u);
  EXPECT_EQ(node.gpus[5].index, 5);
  EXPECT_EQ(node.gpus[5].numa_node, 1);
  EXPECT_DOUBLE_EQ(node.gpus[5].nvlink_gbps, 450);
  ASSERT_EQ(node.nics.size(), 4u);
  EXPECT_EQ(node.nics[2].name, "mlx5_2");
  EXPECT_EQ(node.nics[2].provider, "verbs");
  EXPECT_EQ(node.nics[2].pci_address, "0000:e2:00.0");
  EXPECT_EQ(node.nics[2].address, "10.0.2.1");
  EXPECT_DOUBLE_EQ(node.nics[2].rate_gbps, 50);
  EXPECT_TRUE(node.nics[2].is_up);
}

TEST(Discover, KnowsHowCloseDevicesAre) {
  FakeMachine machine;
  const Node node = machine.node();
  EXPECT_EQ(node.gpu_paths.size(), 56u);
  EXPECT_EQ(path_between(node.gpu_paths, 0, 7)->kind, PathKind::kNvlink);
  EXPECT_EQ(node.gpu_nic_paths.size(), 32u);
  EXPECT_EQ(path_between(node.gpu_nic_paths, 3, 1)->kind, PathKind::kPix) << "below one switch";
  EXPECT_EQ(path_between(node.gpu_nic_paths, 3, 0)->kind, PathKind::kPhb)
      << "two root ports of one socket";
  EXPECT_EQ(path_between(node.gpu_nic_paths, 3, 3)->kind, PathKind::kSys) << "the other socket";
}

TEST(Discover, GpusWithoutNvlinkHavePciPaths) {
  FakeMachine machine(2);
  std::vector<sys::GpuFacts> facts = machine.nvml.gpus().value();
  for (sys::GpuFacts& gpu : facts) gpu.num_nvlinks = 0;
  machine.nvml = sys::FakeNvml(facts);
  const Node node = machine.node();
  EXPECT_NE(path_between(node.gpu_paths, 0, 1)->kind, PathKind::kNvlink);
}

TEST(Discover, NumaNodeComesFromSysfsWhenTheDriverIsSilent) {
  FakeMachine machine;
  std::vector<sys::GpuFacts> facts = machine.nvml.gpus().value();
  for (sys::GpuFacts& gpu : facts) gpu.numa_node = -1;
  machine.nvml = sys::FakeNvml(facts);
  EXPECT_EQ(machine.node().gpus[6].numa_node, 1);
}

TEST(Discover, ALaptopWithoutAnything) {
  sys::FakeSysfs sysfs;
  sys::FakeNvml nvml({});
  nvml.fail_with(unavailable("no driver"));
  const Discovery found = discover({sysfs, nvml, {}, "h", "laptop"});
  EXPECT_TRUE(found.node.gpus.empty());
  EXPECT_TRUE(found.node.nics.empty());
  ASSERT_EQ(found.gaps.size(), 2u);
  EXPECT_NE(found.gaps[1].find("nvml: unavailable: no driver"), std::string::npos) << found.gaps[1];
}

TEST(Discover, AKernelWithoutNumaHasOneMemory) {
  sys::FakeSysfs sysfs;
  sys::FakeNvml nvml({});
  sysfs.write("/sys/devices/system/cpu/cpu0/online", "1");
  sysfs.write("/sys/devices/system/cpu/cpu1/online", "1");
  sysfs.write("/sys/devices/system/cpu/cpufreq/x", "1");
  sysfs.write("/proc/meminfo", "MemTotal:       1000 kB\nMemFree: 5 kB");
  const Node node = discover({sysfs, nvml, {}, "h", "n"}).node;
  ASSERT_EQ(node.cpus.size(), 1u);
  EXPECT_EQ(node.cpus[0].num_cores, 2);
  EXPECT_EQ(node.cpus[0].memory_bytes, 1024000u);
}

TEST(Discover, SocketsOverPlainInterfaces) {
  sys::FakeSysfs sysfs;
  sys::FakeNvml nvml({});
  sysfs.write("/sys/class/net/veth0/speed", "10000");
  sysfs.write("/sys/class/net/eth0/speed", "-1");
  const std::vector<sys::Interface> interfaces = {{"lo", ipv4("127.0.0.1"), true},
                                                  {"veth0", ipv4("10.1.0.1"), false},
                                                  {"veth0", ipv4("10.1.0.2"), false},
                                                  {"eth0", ipv4("10.2.0.1"), false}};
  const Node node = discover({sysfs, nvml, interfaces, "h", "n"}).node;
  ASSERT_EQ(node.nics.size(), 2u) << "no loopback, and an interface once";
  EXPECT_EQ(node.nics[0].provider, "tcp");
  EXPECT_EQ(node.nics[0].address, "10.1.0.1");
  EXPECT_DOUBLE_EQ(node.nics[0].rate_gbps, 1.25);
  EXPECT_DOUBLE_EQ(node.nics[1].rate_gbps, 0) << "no speed is no rate";
}

TEST(Discover, ANicThatIsDownIsListedAsSuch) {
  FakeMachine machine;
  machine.set_nic_down(1);
  const Node node = machine.node();
  ASSERT_EQ(node.nics.size(), 4u);
  EXPECT_FALSE(node.nics[1].is_up);
  EXPECT_TRUE(node.nics[0].is_up);
}

TEST(Discover, AnEfaDeviceIsNotVerbs) {
  FakeMachine machine;
  const std::string device = machine.sysfs.resolve("/sys/class/infiniband/mlx5_0/device").value();
  machine.sysfs.link(device + "/driver", "/sys/bus/pci/drivers/efa");
  machine.sysfs.write("/sys/bus/pci/drivers/efa/module", "efa");
  EXPECT_EQ(machine.node().nics[0].provider, "efa");
}

TEST(Discover, ThisMachineHasAProcessor) {
  const Discovery found = discover_here("").value();
  ASSERT_FALSE(found.node.cpus.empty());
  EXPECT_GT(found.node.cpus[0].num_cores, 0);
  EXPECT_FALSE(found.node.host_id.empty());
  EXPECT_EQ(discover_here("elsewhere")->node.host_id, "elsewhere");
}

TEST(PciPath, FollowsTheTree) {
  const std::string a =
      "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0";
  const std::string same_switch =
      "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0";
  const std::string switch_below =
      "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:02.0/0000:05:00.0/0000:06:00.0/"
      "0000:07:00.0";
  const std::string other_port = "/sys/devices/pci0000:00/0000:00:02.0/0000:08:00.0";
  const std::string other_root = "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0";
  EXPECT_EQ(pci_path(a, 0, a, 0), PathKind::kSelf);
  EXPECT_EQ(pci_path(a, 0, same_switch, 0), PathKind::kPix);
  EXPECT_EQ(pci_path(a, 0, switch_below, 0), PathKind::kPxb);
  EXPECT_EQ(pci_path(a, 0, other_port, 0), PathKind::kPhb);
  EXPECT_EQ(pci_path(a, 0, other_root, 0), PathKind::kNode);
  EXPECT_EQ(pci_path(a, 0, other_root, 1), PathKind::kSys);
  EXPECT_EQ(pci_path("", 0, "", 0), PathKind::kNode);
  EXPECT_EQ(pci_path("", -1, "", -1), PathKind::kSys);
}

}  // namespace
}  // namespace braid::fabric
