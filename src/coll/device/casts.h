// Casts on the device: what the kernels of coll/reduce/casts.h are launched with.
#pragma once

#include <span>

#include "base/dtype.h"
#include "base/status.h"
#include "comm/device/device.h"
#include "sys/cuda/api.h"

namespace braid::coll::device {

struct ArrayCast {
  sys::DevicePtr from = 0, to = 0;
};

/// Enqueues to[i] = from[i] for `count` elements of each array, at most kMostReduceArrays: of fp32,
/// from `dtype`, which is a smaller float.
Status widen(comm::Device& device, sys::Stream stream, std::span<const ArrayCast> arrays,
             uint64_t count, Dtype dtype);
/// And back, rounded.
Status narrow(comm::Device& device, sys::Stream stream, std::span<const ArrayCast> arrays,
              uint64_t count, Dtype dtype);

/// Loads both for every type: at a first call they would wait for kernels that run.
Status load_casts(comm::Device& device);

}  // namespace braid::coll::device
