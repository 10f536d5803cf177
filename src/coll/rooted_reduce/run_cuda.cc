// reduce on the device: root keeps what all ranks reduce.
#include "coll/arguments.h"
#include "coll/device/collectives.h"
#include "coll/device/dropped_sums.h"

namespace braid::coll::device {

Status rooted_reduce(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv, uint64_t count,
                     Dtype dtype, RedOp op, int root, sys::Stream stream) {
  BRAID_RETURN_IF_ERROR(check_root(root, device.size()).with_context("reduce"));
  return run_dropped_sum(
      device, {send, count, dtype, op, recv, 0, device.rank() == root ? count : 0}, stream);
}

}  // namespace braid::coll::device
