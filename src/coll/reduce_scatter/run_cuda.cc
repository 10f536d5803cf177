// reduce_scatter on the device: every rank's operands land in the owner's scratch, and the owner
// adds them in rank order, its own where they are.
#include "coll/device/call.h"
#include "coll/device/collectives.h"
#include "coll/device/direct.h"
#include "coll/device/rounds.h"
#include "coll/device/sums.h"

namespace braid::coll::device {

Status reduce_scatter(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv,
                      uint64_t count, Dtype dtype, RedOp op, sys::Stream stream) {
  const int n = device.size();
  const uint64_t element = dtype_bytes(dtype);
  const uint64_t block = count * element;
  const auto me = static_cast<size_t>(device.rank());
  Call call(device, stream);
  BRAID_RETURN_IF_ERROR(call.begin());
  if (n > 1 && fits_one_kernel(device, PacketOp::kReduceScatter, block)) {
    BRAID_RETURN_IF_ERROR(
        run_one_kernel(device, stream, {PacketOp::kReduceScatter, send, recv, block, dtype, op}));
    return call.end();
  }
  Exchange e;
  e.signature = signature_of({plan::Op::kReduceScatter, dtype, op, count}, {});
  e.most_bytes = block;
  for (int r = 0; r < n; ++r) {
    e.out[static_cast<size_t>(r)] = send + static_cast<uint64_t>(r) * block;
    e.bytes[static_cast<size_t>(r)] = block;
  }
  const auto finish = [&](sys::Stream side, const Piece& piece) {
    Addresses operands = piece.scratch;
    operands[me] = e.out[me] + piece.begin;
    return sum(device, side,
               one_destination(operands, n, recv + piece.begin, piece.length / element), dtype, op);
  };
  const auto started = [] { return Status(); };
  BRAID_RETURN_IF_ERROR(run_rounds(device, stream, e, started, finish));
  return call.end();
}

}  // namespace braid::coll::device
