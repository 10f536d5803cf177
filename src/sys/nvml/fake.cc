#include "sys/nvml/fake.h"

namespace braid::sys {

FakeNvml FakeNvml::two_sockets(int num_gpus) {
  std::vector<GpuFacts> gpus;
  for (int i = 0; i < num_gpus; ++i) {
    GpuFacts gpu;
    gpu.name = "NVIDIA H200";
    gpu.pci_address = fmt::format("0000:{:02x}:00.0", 0x10 + 0x10 * i);
    gpu.memory_bytes = uint64_t{141} << 30;
    gpu.numa_node = i < (num_gpus + 1) / 2 ? 0 : 1;
    gpu.num_nvlinks = 18;
    gpu.nvlink_gbps_per_link = 25;
    gpu.pcie_gen = 5;
    gpu.pcie_width = 16;
    gpus.push_back(std::move(gpu));
  }
  return FakeNvml(std::move(gpus));
}

Result<std::vector<GpuFacts>> FakeNvml::gpus() {
  if (!why_.ok()) return why_;
  return gpus_;
}

}  // namespace braid::sys
