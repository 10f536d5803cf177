// A call of NCCL's as one of braid's.
#pragma once

#include "base/status.h"
#include "bindings/nccl/core.h"
#include "comm/device/device.h"

namespace braid::nccl {

inline sys::DevicePtr address_of(const void* pointer) {
  return reinterpret_cast<sys::DevicePtr>(pointer);
}

/// Puts it on its stream. By the rules of coll/device/collectives.h.
Status enqueue(comm::Device& device, const braid_nccl_call& call);

}  // namespace braid::nccl
