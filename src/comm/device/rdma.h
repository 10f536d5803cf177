// Rdma: the part of a GPU's messages that goes through a NIC: the mirrors of all ranks' rings, the
// proxy that moves them, and how much of a message they carry. On a machine without a NIC it is
// off, and words() say so.
//
// The kernel is the host ring's (pcie/host_ring.h), on a ring of its own: a sender writes a slot
// into its own pinned memory, readers read it from theirs.
//
// Threads: as comm::Device; words(), status() and shares by any.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/device/nic.h"
#include "comm/device/proxy.h"
#include "comm/state.h"
#include "plan/plan.h"
#include "sys/cuda/owned.h"
#include "transport/pcie/host_ring.h"

namespace braid::comm {

struct RdmaSetup {
  int ordinal = 0;  // of the GPU, whose context is current
  uint32_t slot_bytes = 0;
  uint32_t num_slots = 0;
  int num_lanes = 1;
  sys::FabricLibrary* library = nullptr;  // null: the real one; tests bring one that fails
};

class Rdma {
 public:
  /// Collective. What cannot be had leaves it off when BRAID_GPU_RDMA is auto, and is an error when
  /// it is on: the same on all ranks.
  static Result<std::unique_ptr<Rdma>> create(Comm::State& state, sys::Cuda& cuda,
                                              const RdmaSetup& setup, Deadline deadline);
  /// In the context of the GPU.
  ~Rdma();
  Rdma(const Rdma&) = delete;
  Rdma& operator=(const Rdma&) = delete;

  /// After tuning: a NIC that is to carry nothing is closed, with its thread and memory. Before
  /// other threads ask for words(); the Device's watcher may ask for status(). In the context of
  /// the GPU.
  void settle();

  bool is_on() const {
    const std::lock_guard lock(proxy_mutex_);
    return proxy_ != nullptr;
  }
  /// "off: no NIC (...)", "pinned bounce: NIC mlx5_0 cannot reach GPU memory".
  const std::string& words() const { return words_; }
  /// ok, or what ended the mirrors.
  Status status() const {
    const std::lock_guard lock(proxy_mutex_);
    return proxy_ ? proxy_->mirrors().status() : Status();
  }
  /// What the kernel is given. Only when it is on.
  const pcie::HostRing& ring() const { return ring_; }

  /// Operations of which the NIC can carry a part. Sums are none: their operands would cross the
  /// x16 twice as often as those of the host ring, which gain nothing there either.
  static bool can_carry(plan::Op op);
  /// Part of a block (of the buffer, for broadcast) that the NIC is to carry: an option's, or what
  /// tuning found.
  bool is_share_given() const { return is_share_given_; }
  void set_share(plan::Op op, double share);
  double share(plan::Op op) const;
  /// Bytes of a message of `block_bytes` that go through the NIC when `pcie_parts` of it go through
  /// host memory: both stay within what the x16 carries. Whole slots on every lane.
  uint64_t part(plan::Op op, uint64_t block_bytes, uint32_t pcie_parts) const;
  transport::rdma::Mirrors::Traffic traffic() const {
    const std::lock_guard lock(proxy_mutex_);
    return proxy_ ? proxy_->mirrors().traffic() : transport::rdma::Mirrors::Traffic{};
  }
  /// Ends the thread that drives the NIC. The memory stays: kernels may still look at it.
  void stop_proxy();

 private:
  explicit Rdma(int num_ranks) : num_ranks_(num_ranks) {}
  Status start(Comm::State& state, sys::Cuda& cuda, const NicChoice& nic, const RdmaSetup& setup,
               Deadline deadline);
  Status pin(sys::Cuda& cuda, const transport::rdma::Mirrors& mirrors);
  void stop();

  const int num_ranks_;
  std::string words_;
  bool is_share_given_ = false;
  std::array<std::atomic<uint32_t>, plan::kNumOps> parts_{};  // of plan::kWhole
  std::vector<fabric::Link> links_;                           // facts; none: nothing is known
  uint64_t unit_bytes_ = 1;
  pcie::HostRing ring_{};
  mutable std::mutex proxy_mutex_;  // of the pointer: other threads look while stop() ends it
  std::unique_ptr<Proxy> proxy_;
  sys::DeviceMemory progress_;
  std::vector<sys::RegisteredHost> pinned_;  // the mirrors' memory, let go of before it ends
};

}  // namespace braid::comm
