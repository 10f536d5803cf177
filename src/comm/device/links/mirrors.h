// MirrorLink: the part of a GPU's messages that goes through a NIC: the mirrors of all ranks' rings
// (transport/rdma/mirror.h) and the proxy that moves them. On a machine without a NIC it is off, and
// state() says so.
//
// The kernel is the host ring's (pcie/host_ring.h), on a ring of its own: a sender writes a slot
// into its own pinned memory, readers read it from theirs.
//
// Threads: as DeviceLink.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/device/links/link.h"
#include "comm/device/links/nic.h"
#include "comm/device/links/proxy.h"
#include "comm/device/links/ring_kernels.h"

namespace braid::comm {

class MirrorLink : public DeviceLink {
 public:
  explicit MirrorLink(const LinkGround& ground) : DeviceLink(ground) {}
  ~MirrorLink() override;

  fabric::Link facts() const override;
  Status prepare() override;
  std::string shape() const override;
  /// What cannot be had leaves it off when BRAID_GPU_RDMA is auto, and is an error when it is on:
  /// the same on all ranks.
  Status connect(const std::string& shape, Deadline deadline) override;
  /// A NIC that is to carry nothing is closed, with its thread and memory.
  Status start(const DeviceLink& base, Deadline deadline) override;
  void stop() override;

  /// Sums are none: their operands would cross the x16 twice as often as those of the host ring,
  /// which gain nothing there either.
  bool can_carry(plan::Op op) const override;
  LinkTuning tuning() const override;
  /// What it carries, together with links before it, stays within what the x16 carries. Whole slots
  /// on every lane.
  uint64_t part(const PartRequest& request) const override;
  Status enqueue(const LinkPart& part, sys::Stream stream) override;
  Status status() const override;
  /// "off: no NIC (...)", "pinned bounce: NIC mlx5_0 cannot reach GPU memory".
  DeviceLinkState state() const override;

 private:
  bool is_on() const;
  Status open(Deadline deadline);
  Status pin(const transport::rdma::Mirrors& mirrors);
  void close();

  RingKernels kernels_;
  NicChoice nic_;
  std::string how_;
  double given_share_ = 0;           // an option's; 0: none
  std::vector<fabric::Link> links_;  // facts; none: nothing is known
  uint64_t unit_bytes_ = 1;
  pcie::HostRing ring_{};
  mutable std::mutex proxy_mutex_;  // of the pointer: other threads look while close() ends it
  std::unique_ptr<Proxy> proxy_;
  sys::DeviceMemory progress_;
  std::vector<sys::RegisteredHost> pinned_;  // the mirrors' memory, let go of before it ends
};

}  // namespace braid::comm
