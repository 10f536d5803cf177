// Sums of which this rank keeps a part, perhaps none: all_reduce into the spare memory, piece by
// piece, and a copy of what is kept. All ranks make the same calls, wherever their results go: none
// of them writes into memory that is registered on some ranks alone.
#pragma once

#include "base/dtype.h"
#include "base/status.h"
#include "comm/device/device.h"

namespace braid::coll::device {

struct DroppedSum {
  sys::DevicePtr send = 0;
  uint64_t count = 0;
  Dtype dtype = Dtype::kFloat32;
  RedOp op = RedOp::kSum;
  /// Elements [keep_begin, keep_end) of the sum go to `recv`, which may be their own place in send.
  sys::DevicePtr recv = 0;
  uint64_t keep_begin = 0, keep_end = 0;
};
Status run_dropped_sum(comm::Device& device, const DroppedSum& sum, sys::Stream stream);

}  // namespace braid::coll::device
