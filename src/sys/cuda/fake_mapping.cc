// Memory in two halves: allocations are memfds, addresses are reservations of this process.
#include <sys/mman.h>
#include <sys/stat.h>

#include "sys/cuda/fake_state.h"
#include "sys/error_text.h"

namespace braid::sys {

namespace {

constexpr uint64_t kGranularityBytes = 2 << 20;  // as on H100

}  // namespace

Result<uint64_t> FakeCuda::allocation_granularity(int device) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("allocation_granularity"));
  BRAID_RETURN_IF_ERROR(check_device("allocation_granularity", device));
  return kGranularityBytes;
}

uint64_t FakeCuda::free_handle() const {
  std::set<uint64_t> used;
  for (const auto& [handle, held] : allocations_) used.insert(handle);
  for (const auto& [base, mapping] : mappings_) used.insert(mapping.handle);
  uint64_t handle = 1;
  while (used.contains(handle)) ++handle;
  return handle;
}

Allocation FakeCuda::add(std::shared_ptr<Physical> physical) {
  const Allocation allocation{free_handle()};
  allocations_.emplace(allocation.handle, Held{std::move(physical), 1});
  return allocation;
}

Result<Allocation> FakeCuda::create_allocation(const AllocationRequest& request) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("create_allocation"));
  BRAID_RETURN_IF_ERROR(check_device("create_allocation", request.device));
  if (request.bytes == 0 || request.bytes % kGranularityBytes != 0)
    return driver_error("fake cuda: create_allocation: {} bytes are no multiple of {}",
                        request.bytes, kGranularityBytes);
  auto physical = std::make_shared<Physical>();
  physical->memory = Fd(::memfd_create("fake-cuda", MFD_CLOEXEC));
  physical->bytes = request.bytes;
  physical->device = request.device;
  if (::ftruncate(physical->memory.get(), static_cast<off_t>(request.bytes)) != 0)
    return exhausted("fake cuda: create_allocation: {}", error_text(errno));
  return add(std::move(physical));
}

Result<Allocation> FakeCuda::retain_allocation(DevicePtr mapped) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("retain_allocation"));
  const Mapping* mapping = mapping_at(mapped);
  if (mapping == nullptr)
    return driver_error("fake cuda: retain_allocation: nothing is mapped at {:#x}", mapped);
  Held& held = allocations_[mapping->handle];  // the very handle that it was mapped by
  held.physical = mapping->physical;
  ++held.references;
  return Allocation{mapping->handle};
}

Status FakeCuda::release_allocation(Allocation allocation) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("release_allocation"));
  const auto found = allocations_.find(allocation.handle);
  if (found == allocations_.end())
    return driver_error("fake cuda: release_allocation: no allocation {}", allocation.handle);
  if (--found->second.references == 0) allocations_.erase(found);
  return {};
}

Result<Fd> FakeCuda::export_allocation(Allocation allocation) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("export_allocation"));
  const auto found = allocations_.find(allocation.handle);
  if (found == allocations_.end())
    return driver_error("fake cuda: export_allocation: no allocation {}", allocation.handle);
  Fd copy(::dup(found->second.physical->memory.get()));
  if (!copy.is_open()) return exhausted("fake cuda: export_allocation: {}", error_text(errno));
  return copy;
}

Result<Allocation> FakeCuda::import_allocation(int fd) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("import_allocation"));
  auto physical = std::make_shared<Physical>();
  physical->memory = Fd(::dup(fd));
  struct stat file{};
  if (::fstat(physical->memory.get(), &file) != 0)
    return driver_error("fake cuda: import_allocation: {}: {}", fd, error_text(errno));
  physical->bytes = static_cast<uint64_t>(file.st_size);
  return add(std::move(physical));
}

Result<DevicePtr> FakeCuda::reserve_addresses(uint64_t bytes, uint64_t) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("reserve_addresses"));
  if (bytes == 0 || bytes % kGranularityBytes != 0)
    return driver_error("fake cuda: reserve_addresses: {} bytes", bytes);
  void* base =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return exhausted("fake cuda: reserve_addresses: {}", error_text(errno));
  reservations_.emplace(address_of(base), bytes);
  return address_of(base);
}

Status FakeCuda::free_addresses(DevicePtr base, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("free_addresses"));
  const auto found = reservations_.find(base);
  if (found == reservations_.end() || found->second != bytes)
    return driver_error("fake cuda: free_addresses: {} bytes at {:#x} are not reserved", bytes,
                        base);
  const auto mapping = mappings_.lower_bound(base);
  if (mapping != mappings_.end() && mapping->first - base < bytes)
    return driver_error("fake cuda: free_addresses: {:#x} is still mapped", mapping->first);
  reservations_.erase(found);
  ::munmap(pointer_to<void>(base), bytes);
  return {};
}

Status FakeCuda::map(DevicePtr at, uint64_t bytes, Allocation allocation) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("map"));
  const auto found = allocations_.find(allocation.handle);
  const auto reserved = entry_holding(reservations_, at, kPlainBytes);
  if (found == allocations_.end() || found->second.physical->bytes < bytes)
    return driver_error("fake cuda: map: no {} bytes in allocation {}", bytes, allocation.handle);
  if (reserved == reservations_.end() || reserved->first + reserved->second - at < bytes)
    return driver_error("fake cuda: map: {} bytes at {:#x} are not reserved", bytes, at);
  if (mapping_at(at) != nullptr) return driver_error("fake cuda: map: {:#x} is mapped", at);
  if (::mmap(pointer_to<void>(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
             found->second.physical->memory.get(), 0) == MAP_FAILED)
    return exhausted("fake cuda: map: {}", error_text(errno));
  mappings_[at] = {found->second.physical, allocation.handle, bytes, ++last_id_, false};
  return {};
}

Status FakeCuda::unmap(DevicePtr at, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("unmap"));
  const auto found = mappings_.find(at);
  if (found == mappings_.end() || found->second.bytes != bytes)
    return driver_error("fake cuda: unmap: {} bytes at {:#x} are not mapped", bytes, at);
  // The addresses stay reserved, and touching them must fail.
  if (::mmap(pointer_to<void>(at), bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED)
    return driver_error("fake cuda: unmap: {}", error_text(errno));
  mappings_.erase(found);
  return {};
}

Status FakeCuda::allow_access(DevicePtr at, uint64_t bytes, int device) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("allow_access"));
  BRAID_RETURN_IF_ERROR(check_device("allow_access", device));
  const auto found = mappings_.find(at);
  if (found == mappings_.end() || found->second.bytes != bytes)
    return driver_error("fake cuda: allow_access: {} bytes at {:#x} are not mapped", bytes, at);
  if (::mprotect(pointer_to<void>(at), bytes, PROT_READ | PROT_WRITE) != 0)
    return driver_error("fake cuda: allow_access: {}", error_text(errno));
  found->second.is_accessible = true;
  return {};
}

}  // namespace braid::sys
