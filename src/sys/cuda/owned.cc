#include "sys/cuda/owned.h"

namespace braid::sys {

Result<MappedMemory> MappedMemory::map(Cuda& cuda, Allocation allocation, uint64_t bytes,
                                       std::span<const int> devices) {
  MappedMemory memory;
  BRAID_ASSIGN_OR_RETURN(memory.base_, cuda.reserve_addresses(bytes, 0));
  memory.cuda_ = &cuda;
  memory.bytes_ = bytes;
  BRAID_RETURN_IF_ERROR(cuda.map(memory.base_, bytes, allocation));
  memory.is_mapped_ = true;
  for (const int device : devices)
    BRAID_RETURN_IF_ERROR(cuda.allow_access(memory.base_, bytes, device));
  return memory;
}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  if (this != &other) {
    reset();
    cuda_ = std::exchange(other.cuda_, nullptr);
    base_ = other.base_;
    bytes_ = other.bytes_;
    is_mapped_ = other.is_mapped_;
  }
  return *this;
}

void MappedMemory::reset() {
  Cuda* cuda = std::exchange(cuda_, nullptr);
  if (cuda == nullptr) return;
  if (is_mapped_) (void)cuda->unmap(base_, bytes_);
  (void)cuda->free_addresses(base_, bytes_);
}

Result<CurrentDevice> CurrentDevice::use(Cuda& cuda, int device) {
  BRAID_ASSIGN_OR_RETURN(const Context before, cuda.current_context());
  CurrentDevice scope(cuda, before);
  BRAID_RETURN_IF_ERROR(cuda.use_device(device));
  return scope;
}

}  // namespace braid::sys
