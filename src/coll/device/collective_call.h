// One call of a collective on the device, as its function was told: whoever decides or does a part of
// it asks this value, from the route that it takes to the kernels' arguments.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "coll/bit_op.h"
#include "comm/device/device.h"
#include "plan/op.h"

namespace braid::coll::device {

struct CollectiveCall {
  plan::Op op;
  sys::DevicePtr send;
  sys::DevicePtr recv;
  uint64_t bytes;  // of a block; of the whole buffer for all_reduce and broadcast
  Dtype dtype = Dtype::kUint8;
  RedOp redop = RedOp::kSum;
  int root = 0;
  uint64_t stride_bytes = 0;    // between the blocks of an array, for direct kernels; 0: `bytes`
  BitOp bit_op = BitOp::kNone;  // of an all_to_all: compared alone

  uint64_t count() const { return bytes / dtype_bytes(dtype); }
};

/// A call's larger buffer: all ranks' blocks.
uint64_t message_bytes(const comm::Device& device, plan::Op op, uint64_t bytes);

}  // namespace braid::coll::device
