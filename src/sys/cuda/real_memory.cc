#include <algorithm>
#include <array>
#include <cstring>

#include "base/units.h"
#include "sys/cuda/real.h"

namespace braid::sys {

using namespace cuda_driver;  // NOLINT(google-build-using-namespace): the driver's own words

namespace {

constexpr int kAllocationPinned = 1;        // CU_MEM_ALLOCATION_TYPE_PINNED
constexpr int kHandlePosixFd = 1;           // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
constexpr int kLocationDevice = 1;          // CU_MEM_LOCATION_TYPE_DEVICE
constexpr int kAccessReadWrite = 3;         // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
constexpr int kGranularityRecommended = 1;  // CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
constexpr unsigned kIpcLazyPeerAccess = 1;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
constexpr unsigned kRegisterPortable = 1;   // CU_MEMHOSTREGISTER_PORTABLE
constexpr unsigned kRegisterDeviceMap = 2;  // CU_MEMHOSTREGISTER_DEVICEMAP
constexpr uintptr_t kStreamLegacy = 1;      // CU_STREAM_LEGACY; null means the same
constexpr size_t kMostBatched = 64;

enum PointerAttribute {  // CUpointer_attribute
  kMemoryType = 2,
  kBufferId = 7,
  kIsManaged = 8,
  kDeviceOrdinal = 9,
  kIsLegacyIpcCapable = 10,
  kAllowedHandleTypes = 14,
};
enum MemoryType { kTypeHost = 1, kTypeDevice = 2 };  // CUmemorytype

MemAllocationProp exportable_on(int device) {
  MemAllocationProp prop{};
  prop.type = kAllocationPinned;
  prop.requested_handle_types = kHandlePosixFd;
  prop.location = {kLocationDevice, device};
  return prop;
}

MemoryKind kind_of(unsigned type, bool is_managed) {
  if (is_managed) return MemoryKind::kManaged;
  if (type == kTypeHost) return MemoryKind::kHost;
  if (type == kTypeDevice) return MemoryKind::kDevice;
  return MemoryKind::kForeign;
}

}  // namespace

Result<DevicePtr> RealCuda::alloc(uint64_t bytes) {
  Driver::Ptr memory = 0;
  BRAID_RETURN_IF_ERROR(call(driver_.mem_alloc, about("{} bytes", bytes), &memory, bytes));
  return DevicePtr{memory};
}

Status RealCuda::free(DevicePtr memory) {
  return call(driver_.mem_free, about("{:#x}", memory), memory);
}

Result<PointerFacts> RealCuda::pointer_facts(DevicePtr address) {
  // The plural call takes any address: what it does not know it answers with zeros.
  unsigned type = 0;
  int is_managed = 0, is_legacy_ipc_capable = 0, device = -1;
  unsigned long long buffer_id = 0, handle_types = 0;
  int attributes[] = {kMemoryType, kIsManaged,          kDeviceOrdinal,
                      kBufferId,   kIsLegacyIpcCapable, kAllowedHandleTypes};
  void* answers[] = {&type,        &is_managed, &device, &buffer_id, &is_legacy_ipc_capable,
                     &handle_types};
  BRAID_RETURN_IF_ERROR(call(driver_.pointer_attributes, about("{:#x}", address),
                             std::size(attributes), attributes, answers, address));
  PointerFacts facts;
  facts.kind = kind_of(type, is_managed != 0);
  if (facts.kind == MemoryKind::kForeign) return facts;
  facts.device = device;
  facts.buffer_id = buffer_id;
  facts.is_legacy_ipc_capable = is_legacy_ipc_capable != 0;
  facts.can_export_fd = (handle_types & kHandlePosixFd) != 0;
  return facts;
}

Result<AddressRange> RealCuda::address_range(DevicePtr address) {
  Driver::Ptr base = 0;
  size_t bytes = 0;
  BRAID_RETURN_IF_ERROR(call(driver_.mem_range, about("{:#x}", address), &base, &bytes, address));
  return AddressRange{base, bytes};
}

Result<DevicePtr> RealCuda::register_host(void* memory, uint64_t bytes) {
  BRAID_RETURN_IF_ERROR(call(driver_.host_register, about("{} bytes at {}", bytes, memory), memory,
                             bytes, kRegisterPortable | kRegisterDeviceMap));
  Driver::Ptr mapped = 0;
  Status status = call(driver_.host_pointer, about("{}", memory), &mapped, memory, 0);
  if (status.ok()) return DevicePtr{mapped};
  driver_.host_unregister(memory);
  return status;
}

Status RealCuda::unregister_host(void* memory) {
  return call(driver_.host_unregister, about("{}", memory), memory);
}

Status RealCuda::copy(DevicePtr to, DevicePtr from, uint64_t bytes, Stream stream) {
  return call(driver_.memcpy_any, about("{} bytes from {:#x} to {:#x}", bytes, from, to), to, from,
              bytes, stream.handle);
}

Status RealCuda::copy_on_device(DevicePtr to, DevicePtr from, uint64_t bytes, Stream stream) {
  return call(driver_.memcpy_device, about("{} bytes from {:#x} to {:#x}", bytes, from, to), to,
              from, bytes, stream.handle);
}

Status RealCuda::copy_batch(std::span<const DeviceCopy> copies, Stream stream) {
  const bool is_legacy = reinterpret_cast<uintptr_t>(stream.handle) <= kStreamLegacy;
  BRAID_ASSIGN_OR_RETURN(const CaptureState capture, capture_state(stream));
  if (driver_.memcpy_batch.function == nullptr || is_legacy || capture != CaptureState::kNone ||
      copies.size() < 2 || copies.size() > kMostBatched) {
    for (const DeviceCopy& copy : copies)
      BRAID_RETURN_IF_ERROR(copy_on_device(copy.to, copy.from, copy.bytes, stream));
    return {};
  }
  std::array<Driver::Ptr, kMostBatched> to{}, from{};
  std::array<Driver::Bytes, kMostBatched> bytes{};
  for (size_t i = 0; i < copies.size(); ++i) {
    to[i] = copies[i].to;
    from[i] = copies[i].from;
    bytes[i] = copies[i].bytes;
  }
  constexpr int kInStreamOrder = 1;  // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
  MemcpyAttributes attributes{kInStreamOrder, {}, {}, 0};
  Driver::Bytes first = 0;
  return call(driver_.memcpy_batch, about("{} copies", copies.size()), to.data(), from.data(),
              bytes.data(), copies.size(), &attributes, &first, 1, stream.handle);
}

Status RealCuda::fill(DevicePtr to, uint8_t value, uint64_t bytes, Stream stream) {
  return call(driver_.memset_bytes, about("{} bytes at {:#x}", bytes, to), to, value, bytes,
              stream.handle);
}

Result<uint64_t> RealCuda::allocation_granularity(int device) {
  const MemAllocationProp prop = exportable_on(device);
  size_t bytes = 0;
  BRAID_RETURN_IF_ERROR(call(driver_.granularity, about("device {}", device), &bytes, &prop,
                             kGranularityRecommended));
  return uint64_t{bytes};
}

Result<Allocation> RealCuda::create_allocation(const AllocationRequest& request) {
  MemAllocationProp prop = exportable_on(request.device);
  prop.gpu_direct_rdma_capable = request.is_rdma_capable ? 1 : 0;
  Driver::Memory handle = 0;
  BRAID_RETURN_IF_ERROR(call(driver_.create,
                             about("{} bytes on device {}", request.bytes, request.device), &handle,
                             request.bytes, &prop, 0));
  return Allocation{handle};
}

Result<Allocation> RealCuda::retain_allocation(DevicePtr mapped) {
  Driver::Memory handle = 0;
  BRAID_RETURN_IF_ERROR(
      call(driver_.retain, about("{:#x}", mapped), &handle, reinterpret_cast<void*>(mapped)));
  return Allocation{handle};
}

Status RealCuda::release_allocation(Allocation allocation) {
  return call(driver_.release, about("allocation {:#x}", allocation.handle), allocation.handle);
}

Result<Fd> RealCuda::export_allocation(Allocation allocation) {
  int fd = -1;
  BRAID_RETURN_IF_ERROR(call(driver_.export_handle, about("allocation {:#x}", allocation.handle),
                             &fd, allocation.handle, kHandlePosixFd, 0));
  return Fd(fd);
}

Result<Allocation> RealCuda::import_allocation(int fd) {
  Driver::Memory handle = 0;
  auto* os_handle = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  BRAID_RETURN_IF_ERROR(call(driver_.import_handle, about("file descriptor {}", fd), &handle,
                             os_handle, kHandlePosixFd));
  return Allocation{handle};
}

Result<DevicePtr> RealCuda::reserve_addresses(uint64_t bytes, uint64_t alignment_bytes) {
  Driver::Ptr base = 0;
  BRAID_RETURN_IF_ERROR(
      call(driver_.reserve, about("{} bytes", bytes), &base, bytes, alignment_bytes, 0, 0));
  return DevicePtr{base};
}

Status RealCuda::free_addresses(DevicePtr base, uint64_t bytes) {
  return call(driver_.address_free, about("{} bytes at {:#x}", bytes, base), base, bytes);
}

Status RealCuda::map(DevicePtr at, uint64_t bytes, Allocation allocation) {
  return call(driver_.map,
              about("allocation {:#x}, {} bytes at {:#x}", allocation.handle, bytes, at), at, bytes,
              0, allocation.handle, 0);
}

Status RealCuda::unmap(DevicePtr at, uint64_t bytes) {
  return call(driver_.unmap, about("{} bytes at {:#x}", bytes, at), at, bytes);
}

Status RealCuda::allow_access(DevicePtr at, uint64_t bytes, int device) {
  const MemAccessDesc access{{kLocationDevice, device}, kAccessReadWrite};
  return call(driver_.set_access, about("{} bytes at {:#x} for device {}", bytes, at, device), at,
              bytes, &access, 1);
}

Result<IpcHandle> RealCuda::export_ipc(DevicePtr memory) {
  IpcMemHandle raw{};
  BRAID_RETURN_IF_ERROR(call(driver_.ipc_get, about("{:#x}", memory), &raw, memory));
  IpcHandle handle;
  static_assert(sizeof raw == sizeof handle.bytes);
  std::memcpy(handle.bytes.data(), raw.reserved, sizeof raw);
  return handle;
}

Result<DevicePtr> RealCuda::open_ipc(const IpcHandle& handle) {
  IpcMemHandle raw{};
  std::memcpy(raw.reserved, handle.bytes.data(), sizeof raw);
  Driver::Ptr memory = 0;
  BRAID_RETURN_IF_ERROR(
      call(driver_.ipc_open, about("another process's memory"), &memory, raw, kIpcLazyPeerAccess));
  return DevicePtr{memory};
}

Status RealCuda::close_ipc(DevicePtr memory) {
  return call(driver_.ipc_close, about("{:#x}", memory), memory);
}

}  // namespace braid::sys
