#include "sys/nvml/api.h"

#include <gtest/gtest.h>

#include <set>

#include "sys/nvml/fake.h"

namespace braid::sys {
namespace {

TEST(FakeNvml, EightGpusOnTwoSockets) {
  FakeNvml fake = FakeNvml::two_sockets(8);
  const auto gpus = fake.gpus().value();
  ASSERT_EQ(gpus.size(), 8u);
  std::set<std::string> addresses;
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(gpus[i].numa_node, i < 4 ? 0 : 1);
    EXPECT_EQ(gpus[i].num_nvlinks * gpus[i].nvlink_gbps_per_link, 450);
    addresses.insert(gpus[i].pci_address);
  }
  EXPECT_EQ(addresses.size(), 8u);
}

TEST(FakeNvml, FailsOnDemand) {
  FakeNvml fake = FakeNvml::two_sockets(2);
  fake.fail_with(driver_error("nvml: nvmlDeviceGetCount_v2: Unknown Error (999)"));
  EXPECT_EQ(fake.gpus().status().code(), Code::kDriver);
}

// With a driver this reads real GPUs, without one it must say so and nothing worse.
TEST(RealNvml, AnswersOnAnyMachine) {
  auto gpus = real_nvml().gpus();
  if (!gpus.ok()) {
    EXPECT_EQ(gpus.status().code(), Code::kUnavailable) << gpus.status().to_string();
    EXPECT_TRUE(gpus.status().message().starts_with("nvml: "));
    EXPECT_EQ(real_nvml().driver_version(), "");
    return;
  }
  EXPECT_FALSE(real_nvml().driver_version().empty());
  for (const GpuFacts& gpu : *gpus) {
    EXPECT_FALSE(gpu.name.empty());
    EXPECT_EQ(gpu.pci_address.size(), 12u) << gpu.pci_address;
    EXPECT_GT(gpu.memory_bytes, uint64_t{1} << 28);
    EXPECT_GE(gpu.nvlink_gbps_per_link, 0);
    RecordProperty("gpu", fmt::format("{} {} numa {} nvlink {} x {} GB/s pcie {} x{}", gpu.name,
                                      gpu.pci_address, gpu.numa_node, gpu.num_nvlinks,
                                      gpu.nvlink_gbps_per_link, gpu.pcie_gen, gpu.pcie_width));
  }
}

}  // namespace
}  // namespace braid::sys
