// Sums on the device: what the reduce kernels (coll/reduce/reduce_args.h) are launched with.
#pragma once

#include "base/dtype.h"
#include "base/status.h"
#include "coll/reduce/reduce_args.h"
#include "comm/device/device.h"

namespace braid::coll::device {

/// Enqueues dst = reduction of `srcs` (one per rank, in rank order) over `bytes` bytes each.
Status sum(comm::Device& device, sys::Stream stream, const ReduceArgs& args, Dtype dtype, RedOp op);

/// For `srcs` at `addresses` and one destination.
ReduceArgs one_destination(const std::array<sys::DevicePtr, nvlink::kMostRanks>& addresses,
                           int num_srcs, sys::DevicePtr dst, uint64_t count_elements);

}  // namespace braid::coll::device
