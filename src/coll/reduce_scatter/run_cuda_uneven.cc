// reduce_scatter with a length per rank on the device: a rank keeps its block of what all reduce.
#include <algorithm>
#include <numeric>

#include "coll/arguments.h"
#include "coll/device/collectives.h"
#include "coll/device/dropped_sums.h"
#include "coll/reduce_scatter/steps.h"

namespace braid::coll::device {

Status reduce_scatter_v(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv,
                        std::span<const uint64_t> counts, Dtype dtype, RedOp op,
                        sys::Stream stream) {
  BRAID_RETURN_IF_ERROR(
      blocks_bytes("counts", counts, device.size(), dtype).status().with_context("reduce_scatter"));
  const auto is_first = [&](uint64_t count) { return count == counts[0]; };
  if (std::all_of(counts.begin(), counts.end(), is_first))
    return reduce_scatter(device, send, recv, counts[0], dtype, op, stream);
  const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  const uint64_t begin = reduce_scatter_steps::block_begin(device.rank(), counts);
  const uint64_t end = begin + counts[static_cast<size_t>(device.rank())];
  return run_dropped_sum(device, {send, total, dtype, op, recv, begin, end}, stream);
}

}  // namespace braid::coll::device
