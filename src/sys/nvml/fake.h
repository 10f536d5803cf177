// GPUs in memory.
#pragma once

#include "sys/nvml/api.h"

namespace braid::sys {

class FakeNvml : public Nvml {
 public:
  explicit FakeNvml(std::vector<GpuFacts> gpus) : gpus_(std::move(gpus)) {}
  /// `num_gpus` H200-like GPUs (18 NVLinks of 25 GB/s, PCIe 5 x16), the first half on NUMA node 0,
  /// the second on 1.
  static FakeNvml two_sockets(int num_gpus);

  void fail_with(Status why) { why_ = std::move(why); }
  Result<std::vector<GpuFacts>> gpus() override;
  std::string driver_version() override { return "fake"; }

 private:
  std::vector<GpuFacts> gpus_;
  Status why_;
};

}  // namespace braid::sys
