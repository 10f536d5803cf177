// all_to_all on the device: one kernel where the message is small enough, else over all links.
#include "coll/device/collectives.h"
#include "coll/device/equal_blocks.h"
#include "coll/device/route.h"

namespace braid::coll::device {

Status all_to_all(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv, uint64_t count,
                  Dtype dtype, sys::Stream stream, BitOp bit_op) {
  CollectiveCall what{plan::Op::kAllToAll, send, recv, count * dtype_bytes(dtype), dtype};
  what.bit_op = bit_op;
  return run_call(device, stream, what, [&](Call& call, const comm::SymmetricAddress& landing) {
    return exchange_equal_blocks(device, stream, call, what, landing);
  });
}

}  // namespace braid::coll::device
