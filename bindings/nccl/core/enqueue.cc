#include "bindings/nccl/core/enqueue.h"

#include "coll/device/collectives.h"

namespace braid::nccl {

Status enqueue(comm::Device& device, const braid_nccl_call& call) {
  const auto dtype = static_cast<Dtype>(call.dtype);
  const auto redop = static_cast<RedOp>(call.redop);
  const sys::DevicePtr send = address_of(call.send), recv = address_of(call.recv);
  const sys::Stream stream{call.stream};
  switch (static_cast<braid_nccl_op>(call.op)) {
    case BRAID_NCCL_ALL_REDUCE:
      return coll::device::all_reduce(device, send, recv, call.count, dtype, redop, stream);
    case BRAID_NCCL_ALL_GATHER:
      return coll::device::all_gather(device, send, recv, call.count, dtype, stream);
    case BRAID_NCCL_REDUCE_SCATTER:
      return coll::device::reduce_scatter(device, send, recv, call.count, dtype, redop, stream);
    case BRAID_NCCL_BROADCAST:
      return coll::device::broadcast(device, send, recv, call.count, dtype, call.root, stream);
    case BRAID_NCCL_ALL_TO_ALL:
      return coll::device::all_to_all(device, send, recv, call.count, dtype, stream);
    case BRAID_NCCL_NUM_OPS: break;
  }
  return internal_error("nccl call {} is unknown", call.op);
}

}  // namespace braid::nccl
