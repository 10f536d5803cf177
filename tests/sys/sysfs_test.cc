#include "sys/sysfs/api.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "sys/sysfs/fake.h"

namespace braid::sys {
namespace {

using Names = std::vector<std::string>;

// A NIC as sysfs shows it: the class directory links into the device tree.
FakeSysfs one_nic() {
  FakeSysfs tree({{"/sys/devices/pci0000:10/0000:11:00.0/net/eth0/operstate", "up\n"},
                  {"/sys/devices/pci0000:10/0000:11:00.0/net/eth0/speed", "400000\n"},
                  {"/sys/devices/pci0000:10/0000:11:00.0/numa_node", "1\n"},
                  {"/sys/devices/pci0000:10/0000:11:00.0/vendor", "0x15b3\n"},
                  {"/sys/devices/system/node/node0/cpulist", "0-3\n"},
                  {"/sys/devices/system/node/node1/cpulist", "4-7\n"}});
  tree.link("/sys/class/net/eth0", "/sys/devices/pci0000:10/0000:11:00.0/net/eth0");
  tree.link("/sys/devices/pci0000:10/0000:11:00.0/net/eth0/device",
            "/sys/devices/pci0000:10/0000:11:00.0");
  return tree;
}

TEST(FakeSysfs, ReadsThroughChainsOfLinks) {
  const FakeSysfs tree = one_nic();
  EXPECT_EQ(tree.read("/sys/class/net/eth0/operstate").value(), "up");
  EXPECT_EQ(tree.read_integer("/sys/class/net/eth0/device/numa_node", -1), 1);
  EXPECT_EQ(tree.read_integer("/sys/class/net/eth0/device/vendor", -1), 0x15b3);
  EXPECT_EQ(tree.resolve("/sys/class/net/eth0/device").value(),
            "/sys/devices/pci0000:10/0000:11:00.0");
}

TEST(FakeSysfs, ListsFilesLinksAndFoldersOnce) {
  const FakeSysfs tree = one_nic();
  EXPECT_EQ(tree.list("/sys/devices/system/node"), (Names{"node0", "node1"}));
  EXPECT_EQ(tree.list("/sys/class/net"), (Names{"eth0"}));
  EXPECT_EQ(tree.list("/sys/class/net/eth0"), (Names{"device", "operstate", "speed"}));
  EXPECT_EQ(tree.list("/nowhere"), Names{});
}

TEST(FakeSysfs, MissingAndUnreadableFilesAreUnavailable) {
  FakeSysfs tree = one_nic();
  tree.fail_reading("/sys/devices/pci0000:10/0000:11:00.0/net/eth0/speed");
  EXPECT_EQ(tree.read("/sys/class/net/eth0/speed").status().code(), Code::kUnavailable);
  EXPECT_EQ(tree.read_integer("/sys/class/net/eth0/speed", -1), -1);
  EXPECT_EQ(tree.read("/sys/class/net/eth9/speed").status().code(), Code::kUnavailable);
  EXPECT_FALSE(tree.resolve("/sys/class/net/eth9").ok());
}

TEST(FakeSysfs, ALoopOfLinksEnds) {
  FakeSysfs tree;
  tree.link("/a", "/b");
  tree.link("/b", "/a");
  EXPECT_FALSE(tree.read("/a").ok());
}

TEST(FakeSysfs, TextThatIsNoNumberGivesTheFallback) {
  FakeSysfs tree({{"/a", "12 apples"}, {"/b", ""}, {"/c", "-1"}, {"/d", "0x"}});
  EXPECT_EQ(tree.read_integer("/a", 7), 7);
  EXPECT_EQ(tree.read_integer("/b", 7), 7);
  EXPECT_EQ(tree.read_integer("/c", 7), -1);
  EXPECT_EQ(tree.read_integer("/d", 7), 7);
}

TEST(RealSysfs, ReadsThisMachine) {
  const Sysfs& real = real_sysfs();
  auto status = real.read("/proc/self/status");
  ASSERT_TRUE(status.ok());
  EXPECT_NE(status->find("Pid:"), std::string::npos);
  EXPECT_NE(status->back(), '\n');
  const Names self = real.list("/proc/self/ns");
  EXPECT_TRUE(std::is_sorted(self.begin(), self.end()));
  EXPECT_NE(std::find(self.begin(), self.end(), "pid"), self.end());
  EXPECT_EQ(real.resolve("/proc/self").value(), "/proc/" + std::to_string(::getpid()));
}

TEST(RealSysfs, WhatIsNotThereIsUnavailable) {
  const Sysfs& real = real_sysfs();
  EXPECT_EQ(real.read("/proc/no_such_file").status().code(), Code::kUnavailable);
  EXPECT_EQ(real.read("/proc").status().code(), Code::kUnavailable);  // a directory
  EXPECT_EQ(real.list("/proc/no_such_directory"), Names{});
  EXPECT_EQ(real.resolve("/proc/no_such_file").status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace braid::sys
