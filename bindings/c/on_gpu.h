// The way of a C call to the GPU. As in CUDA's own interfaces a call is about the calling thread's
// current device; that its memory is there is looked up, since a kernel that meets another one's
// ends the context.
#pragma once

#include <initializer_list>

#include "base/status.h"
#include "coll/arguments.h"
#include "coll/device/entry.h"
#include "comm/comm.h"
#include "comm/device/device.h"
#include "sys/cuda/api.h"

namespace braid::c {

inline sys::DevicePtr address_of(const void* memory) {
  return reinterpret_cast<sys::DevicePtr>(memory);
}

/// The driver that the comm uses, once it uses one.
sys::Cuda& cuda_of(comm::Comm& comm);
/// The calling thread's GPU.
Result<int> current_gpu(sys::Cuda& cuda);
Status check_on_gpu(sys::Cuda& cuda, int gpu, const coll::Buffer& buffer);

/// Runs call(device) with the comm's Device, after a look at the memory that it is for.
template <typename Call>
Status on_gpu(comm::Comm& comm, std::initializer_list<coll::Buffer> buffers, Call&& call) {
  sys::Cuda& cuda = cuda_of(comm);
  BRAID_ASSIGN_OR_RETURN(const int gpu, current_gpu(cuda));
  for (const coll::Buffer& buffer : buffers) BRAID_RETURN_IF_ERROR(check_on_gpu(cuda, gpu, buffer));
  return coll::device::on_device(comm, gpu, call);
}

}  // namespace braid::c
