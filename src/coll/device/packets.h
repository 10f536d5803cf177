// Small messages on the device: one kernel per call, by packets (coll/packets/packets.cuh).
#pragma once

#include <string_view>

#include "base/dtype.h"
#include "base/status.h"
#include "coll/device/collective_call.h"
#include "coll/packets/packets.h"
#include "comm/device/device.h"

namespace braid::coll::device {

/// What its kernels ask for in every rank's arena.
inline constexpr std::string_view kPacketArea = "packets";

/// The size of the packet area for a comm of `num_ranks`.
comm::AreaRequest packet_area(const Config& config, int num_ranks);

/// Where a sum's entries are: the integers' or the floats' fatbin.
bool is_whole(Dtype dtype);

/// Whether a call is small enough for packets; alike on all ranks.
bool fits_packets(const comm::Device& device, plan::Op op, uint64_t bytes);

/// The kernel of a call by packets; its buffers do not matter.
Result<sys::Kernel> packet_kernel(comm::Device& device, const CollectiveCall& call);

/// Enqueues it.
Status run_packets(comm::Device& device, sys::Stream stream, const CollectiveCall& call);

}  // namespace braid::coll::device
