#include "coll/device/segments.h"

#include "coll/device/call.h"

namespace braid::coll::device {

all_reduce_cut::Segments segments_of(const comm::Device& device, uint64_t bytes,
                                     bool is_registered) {
  const uint64_t most = most_beside_bytes(device, plan::Op::kAllReduce, bytes);
  const comm::DeviceLink* const link = device.links().for_sums();
  const uint64_t parts = link == nullptr ? 0 : link->shares().parts(plan::Op::kAllReduce, bytes);
  const all_reduce_cut::BesideRoom room{most,
                                        parts == 0 ? UINT64_MAX : most / parts * plan::kWhole};
  return all_reduce_cut::segments_of(bytes, device.arena().scratch_bytes(),
                                     static_cast<uint64_t>(device.size()), is_registered, room);
}

}  // namespace braid::coll::device
