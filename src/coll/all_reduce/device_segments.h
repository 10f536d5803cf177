// How a device cuts an all-reduce into segments: by its scratch, and by what the host link may have
// of one.
#pragma once

#include "coll/all_reduce/segments.h"
#include "comm/device/device.h"

namespace braid::coll::device {

/// Of the next call. The share that holds before it is counted is the same on all ranks, and so are
/// its segments.
all_reduce_cut::Segments segments_of(const comm::Device& device, uint64_t bytes,
                                     bool is_registered);

}  // namespace braid::coll::device
