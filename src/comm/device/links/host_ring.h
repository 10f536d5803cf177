// HostRingLink: the PCIe link, which carries parts of messages through slots in pinned host memory
// that all GPUs of a node map (transport/pcie/host_ring.h).
//
// Threads: as DeviceLink.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/device/links/link.h"
#include "comm/device/links/ring_kernels.h"
#include "sys/cuda/owned.h"
#include "transport/host/segments.h"

namespace braid::comm {

class HostRingLink : public DeviceLink {
 public:
  explicit HostRingLink(const LinkGround& ground) : DeviceLink(ground) {}

  fabric::Link facts() const override;
  Status prepare() override;
  std::string shape() const override;
  Status connect(const std::string& shape, Deadline deadline) override;
  Status start(const DeviceLink& base, Deadline deadline) override;
  bool can_carry(plan::Op /*op*/) const override { return true; }
  bool can_carry_uneven() const override { return true; }
  LinkTuning tuning() const override { return LinkTuning::kBySize; }
  uint64_t part(const PartRequest& request) const override;
  Status enqueue(const LinkPart& part, sys::Stream stream) override;
  Status copy_beside(sys::Stream stream, sys::DevicePtr to, sys::DevicePtr from,
                     uint64_t bytes) override;
  DeviceLinkState state() const override { return {true, "through host memory"}; }

 private:
  Status pin(uint64_t bytes);

  RingKernels kernels_;
  pcie::HostRing ring_{};
  sys::DeviceMemory progress_;
  std::optional<transport::Segments> segments_;
  std::vector<sys::RegisteredHost> pinned_;  // the segments, let go of before they end
};

}  // namespace braid::comm
