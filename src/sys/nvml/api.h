// What NVML knows about GPUs: facts for the fabric, read once. The library is opened at run time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace braid::sys {

/// One GPU. Numbers that the driver does not tell are 0, a NUMA node -1.
struct GpuFacts {
  std::string name;
  std::string pci_address;  // "0000:1b:00.0", lower case, as sysfs writes it
  uint64_t memory_bytes = 0;
  int numa_node = -1;
  int num_nvlinks = 0;              // links that are up
  double nvlink_gbps_per_link = 0;  // GB/s and direction
  int pcie_gen = 0;
  int pcie_width = 0;
};

class Nvml {
 public:
  virtual ~Nvml() = default;
  /// All GPUs in NVML's order (PCI order). unavailable when there is no driver; driver when it
  /// fails.
  virtual Result<std::vector<GpuFacts>> gpus() = 0;
  virtual std::string driver_version() = 0;
};

/// libnvidia-ml.so.1. Never null: without the library every call says unavailable.
Nvml& real_nvml();

}  // namespace braid::sys
