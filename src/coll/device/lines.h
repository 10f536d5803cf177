// Messages between small and middle size on the device: one kernel per call, by lines
// (coll/lines/lines.cuh).
#pragma once

#include <string_view>

#include "base/config.h"
#include "base/status.h"
#include "coll/device/packets.h"
#include "coll/lines/lines.h"
#include "comm/device/device.h"

namespace braid::coll::device {

/// What its kernels ask for in every rank's arena.
inline constexpr std::string_view kLineArea = "lines";

/// The size of the area for a comm of `num_ranks`; 0 when the option turns lines off.
comm::AreaRequest line_area(const Config& config, int num_ranks);

/// Whether a call may go this way; alike on all ranks.
bool fits_lines(const comm::Device& device, plan::Op op, uint64_t bytes);

/// The kernel of a call by lines; its buffers do not matter.
Result<sys::Kernel> line_kernel(comm::Device& device, const CollectiveCall& call);
/// The same among so many ranks, who may be another comm's.
Result<sys::Kernel> line_kernel(comm::Device& device, const CollectiveCall& call, int num_ranks);

/// Enqueues it. The call is told as to packets.
Status run_lines(comm::Device& device, sys::Stream stream, const CollectiveCall& call);

}  // namespace braid::coll::device
