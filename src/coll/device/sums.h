// Sums on the device: what the reduce kernels (coll/reduce/reduce_args.h) are launched with.
#pragma once

#include "base/dtype.h"
#include "base/status.h"
#include "coll/reduce/reduce_args.h"
#include "comm/device/device.h"

namespace braid::coll::device {

struct SumKind {
  Dtype dtype;
  RedOp op;
  uint64_t most_blocks;
};

/// Blocks for the sums of a call of `bytes` per rank: many while it is short; few when it lasts,
/// `lasting`, which are enough to keep up with the copy engines.
uint64_t sum_blocks(const comm::Device& device, uint64_t bytes, uint64_t lasting);

/// And for a sum that nothing else of the call can hide behind any more.
uint64_t last_sum_blocks(const comm::Device& device);

/// The kernel of sums of any number of operands.
Result<sys::Kernel> sum_kernel(comm::Device& device, const SumKind& kind);

/// Enqueues dst = reduction of `srcs` (one per rank, in rank order).
Status sum(comm::Device& device, sys::Stream stream, const ReduceArgs& args, const SumKind& kind);

/// For `srcs` at `addresses` and one destination.
ReduceArgs one_destination(const std::array<sys::DevicePtr, nvlink::kMostRanks>& addresses,
                           int num_srcs, sys::DevicePtr dst, uint64_t count_elements);

}  // namespace braid::coll::device
