// NvlinkLink: the base link, over which GPUs have each other's memory mapped. Its parts are copies
// by the copy engines into peers' memory.
//
// It may be held to a rate (BRAID_LINK_CAP), as a slower NVLink would have it: then no kernel may
// store into peers' memory, for its stores cannot be held.
//
// Threads: as DeviceLink.
#pragma once

#include <span>
#include <string>

#include "comm/device/links/link.h"

namespace braid::comm {

class NvlinkLink : public DeviceLink {
 public:
  explicit NvlinkLink(const LinkGround& ground) : DeviceLink(ground) {}

  fabric::Link facts() const override;
  Status prepare() override;
  std::string shape() const override;
  Status connect(const std::string& /*shape*/, Deadline /*deadline*/) override { return {}; }
  bool can_carry(plan::Op /*op*/) const override { return true; }
  bool can_carry_uneven() const override { return true; }
  bool writes_peer_memory() const override { return true; }
  double throttle_gbps() const override { return throttle_gbps_; }
  uint64_t part(const PartRequest& request) const override { return request.most_bytes; }
  Status enqueue(const LinkPart& part, sys::Stream stream) override;
  DeviceLinkState state() const override;

 private:
  Status copy_throttled(std::span<const sys::DeviceCopy> copies, sys::Stream stream);
  Status hold(sys::Stream stream, uint64_t bytes);

  double throttle_gbps_ = 0;
  sys::Kernel hold_kernel_{};
  sys::DeviceMemory held_until_ns_;
};

}  // namespace braid::comm
