// scatter on the device: an uneven exchange in which all blocks but root's are empty.
#include "coll/arguments.h"
#include "coll/device/collectives.h"
#include "coll/scatter/steps.h"

namespace braid::coll::device {

Status scatter(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv, uint64_t count,
               Dtype dtype, int root, sys::Stream stream) {
  BRAID_RETURN_IF_ERROR(check_root(root, device.size()).with_context("scatter"));
  const uint64_t block = count * dtype_bytes(dtype);
  Blocks out, in;
  in.at[static_cast<size_t>(root)] = recv;
  in.bytes[static_cast<size_t>(root)] = block;
  for (int r = 0; device.rank() == root && r < device.size(); ++r) {
    out.at[static_cast<size_t>(r)] = send + scatter_steps::block_offset(r, block);
    out.bytes[static_cast<size_t>(r)] = block;
  }
  return exchange_blocks(device, out, in, dtype, stream);
}

}  // namespace braid::coll::device
