// The kernels that move flows through rings in pinned host memory (transport/pcie/host_ring.h), for
// all links that are made of such rings.
#pragma once

#include "base/status.h"
#include "comm/device/links/link.h"
#include "comm/device/links/ring_engine.h"
#include "transport/pcie/host_ring.h"

namespace braid::comm {

class RingKernels {
 public:
  /// Which kernels, by the options and by what the GPU can; and loads them.
  Status prepare(const LinkGround& ground);
  const RingEngine& engine() const { return engine_; }
  /// Moves a part over `ring` by `num_lanes` blocks a flow.
  Status run(const LinkGround& ground, sys::Stream stream, const pcie::HostRing& ring,
             const LinkPart& part, int num_lanes) const;
  /// DeviceLink::copy_beside(), where rings go by bulk copies.
  bool can_copy(sys::DevicePtr to, sys::DevicePtr from) const;
  Status copy(const LinkGround& ground, sys::Stream stream, sys::DevicePtr to, sys::DevicePtr from,
              uint64_t bytes) const;

 private:
  RingEngine engine_;
  sys::Kernel threads_{}, bulk_{}, local_copy_{};
};

/// Slots of a ring, by the options. Errors: invalid_argument, for a ring that would never end.
Status read_slots(const Config& config, int num_ranks, pcie::HostRing& ring);

}  // namespace braid::comm
