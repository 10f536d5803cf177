// all_gather with a length per rank on the device: an uneven exchange in which a rank sends all
// others the same block.
#include "coll/all_gather/steps.h"
#include "coll/arguments.h"
#include "coll/device/collectives.h"

namespace braid::coll::device {

Status all_gather_v(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv,
                    std::span<const uint64_t> counts, Dtype dtype, sys::Stream stream) {
  BRAID_RETURN_IF_ERROR(
      blocks_bytes("counts", counts, device.size(), dtype).status().with_context("all_gather"));
  const uint64_t element = dtype_bytes(dtype);
  Blocks out, in;
  for (int r = 0; r < device.size(); ++r) {
    const auto i = static_cast<size_t>(r);
    out.at[i] = send;
    out.bytes[i] = counts[static_cast<size_t>(device.rank())] * element;
    in.at[i] = recv + all_gather_steps::block_begin(r, counts) * element;
    in.bytes[i] = counts[i] * element;
  }
  return exchange_blocks(device, out, in, dtype, stream);
}

}  // namespace braid::coll::device
