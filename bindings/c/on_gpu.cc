#include "on_gpu.h"

#include <memory>
#include <mutex>

#include "comm/state.h"

namespace braid::c {

sys::Cuda& cuda_of(comm::Comm& comm) {
  const std::lock_guard lock(comm.state().health_mutex);
  return comm.state().device ? comm.state().device->cuda() : sys::real_cuda();
}

Result<int> current_gpu(sys::Cuda& cuda) {
  BRAID_RETURN_IF_ERROR(cuda.ready());
  return cuda.current_device();
}

Status check_on_gpu(sys::Cuda& cuda, int gpu, const coll::Buffer& buffer) {
  if (buffer.bytes == 0) return {};
  BRAID_RETURN_IF_ERROR(coll::check_buffer(buffer));
  BRAID_ASSIGN_OR_RETURN(const sys::PointerFacts facts,
                         cuda.pointer_facts(address_of(buffer.data)));
  if (facts.kind != sys::MemoryKind::kDevice)
    return invalid_argument("{} is no GPU memory", buffer.name);
  if (facts.device != gpu)
    return invalid_argument("{} is memory of GPU {}, the calling thread's GPU is {}", buffer.name,
                            facts.device, gpu);
  return {};
}

}  // namespace braid::c
