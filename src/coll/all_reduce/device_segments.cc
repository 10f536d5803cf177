#include "coll/all_reduce/device_segments.h"

#include "coll/device/call.h"

namespace braid::coll::device {

all_reduce_cut::Segments segments_of(const comm::Device& device, uint64_t bytes,
                                     bool is_registered) {
  const uint64_t most = most_host_bytes(device, plan::Op::kAllReduce, bytes);
  const uint64_t parts = device.host_parts(plan::Op::kAllReduce, bytes);
  const all_reduce_cut::HostRoom room{most, parts == 0 ? UINT64_MAX : most / parts * plan::kWhole};
  return all_reduce_cut::segments_of(bytes, device.scratch_bytes(),
                                     static_cast<uint64_t>(device.size()), is_registered, room);
}

}  // namespace braid::coll::device
