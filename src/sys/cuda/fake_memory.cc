#include <atomic>
#include <cstring>

#include "sys/cuda/fake_state.h"

namespace braid::sys {

namespace {

constexpr uint64_t kAlignmentBytes = 256;

struct NamedBlock {  // what an IpcHandle holds
  DevicePtr base;
  uint64_t buffer_id;
};

}  // namespace

const FakeCuda::Block* FakeCuda::block_at(DevicePtr address) const {
  const auto it = entry_holding(blocks_, address, kBytesOf);
  return it == blocks_.end() ? nullptr : &it->second;
}

const FakeCuda::Mapping* FakeCuda::mapping_at(DevicePtr address) const {
  const auto it = entry_holding(mappings_, address, kBytesOf);
  return it == mappings_.end() ? nullptr : &it->second;
}

// Through mappings of one reservation that lie one behind the other, as a copy goes.
uint64_t FakeCuda::accessible_bytes(DevicePtr address) const {
  const auto reserved = entry_holding(reservations_, address, kPlainBytes);
  const DevicePtr limit = reserved == reservations_.end() ? 0 : reserved->first + reserved->second;
  DevicePtr end = address;
  for (auto it = entry_holding(mappings_, address, kBytesOf);
       it != mappings_.end() && it->first <= end && it->first < limit && it->second.is_accessible;
       ++it)
    end = it->first + it->second.bytes;
  return end - address;
}

// Addresses that are nobody's are taken to be the test's own host memory.
Status FakeCuda::check_range(const char* name, DevicePtr address, uint64_t bytes) const {
  const auto block = entry_holding(blocks_, address, kBytesOf);
  const auto mapping = entry_holding(mappings_, address, kBytesOf);
  uint64_t left = UINT64_MAX;
  if (block != blocks_.end()) left = block->first + block->second.bytes - address;
  if (mapping != mappings_.end()) left = accessible_bytes(address);
  if (mapping != mappings_.end() && !mapping->second.is_accessible)
    return driver_error("fake cuda: {}: no device has access at {:#x}", name, address);
  if (bytes <= left) return {};
  return driver_error("fake cuda: {}: {} bytes at {:#x}, where {} are left", name, bytes, address,
                      left);
}

Result<DevicePtr> FakeCuda::alloc(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_in_context("alloc"));
  if (bytes == 0) return driver_error("fake cuda: alloc: 0 bytes");
  const uint64_t rounded = (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  Block block{.memory = {}, .bytes = bytes, .device = device_of_thread(), .buffer_id = ++last_id_};
  block.memory.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignmentBytes, rounded)));
  if (block.memory == nullptr) return exhausted("fake cuda: alloc: {} bytes", bytes);
  const DevicePtr base = address_of(block.memory.get());
  blocks_.emplace(base, std::move(block));
  return base;
}

Status FakeCuda::free(DevicePtr memory) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_in_context("free"));
  if (blocks_.erase(memory) == 1) return {};
  return driver_error("fake cuda: free: {:#x} was not allocated", memory);
}

Result<PointerFacts> FakeCuda::pointer_facts(DevicePtr address) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_in_context("pointer_facts"));
  if (const Block* block = block_at(address))
    return PointerFacts{MemoryKind::kDevice, block->device, block->buffer_id, true, false};
  if (const Mapping* mapping = mapping_at(address))
    return PointerFacts{MemoryKind::kDevice, mapping->physical->device, mapping->buffer_id, false,
                        true};
  if (entry_holding(hosts_, address, kPlainBytes) != hosts_.end())
    return PointerFacts{MemoryKind::kHost, device_of_thread(), 0, false, false};
  return PointerFacts{};
}

Result<AddressRange> FakeCuda::address_range(DevicePtr address) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_in_context("address_range"));
  const auto block = entry_holding(blocks_, address, kBytesOf);
  if (block != blocks_.end()) return AddressRange{block->first, block->second.bytes};
  const auto mapping = entry_holding(mappings_, address, kBytesOf);
  if (mapping != mappings_.end()) return AddressRange{mapping->first, mapping->second.bytes};
  return driver_error("fake cuda: address_range: {:#x} is no device memory", address);
}

Result<DevicePtr> FakeCuda::register_host(void* memory, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_in_context("register_host"));
  const DevicePtr base = address_of(memory);
  const auto next = hosts_.lower_bound(base);
  const bool overlaps = (next != hosts_.end() && next->first - base < bytes) ||
                        entry_holding(hosts_, base, kPlainBytes) != hosts_.end();
  if (overlaps) return driver_error("fake cuda: register_host: {} is already registered", memory);
  hosts_.emplace(base, bytes);
  return base;
}

Status FakeCuda::unregister_host(void* memory) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_in_context("unregister_host"));
  if (hosts_.erase(address_of(memory)) == 1) return {};
  return driver_error("fake cuda: unregister_host: {} is not registered", memory);
}

Status FakeCuda::move(const char* name, DevicePtr to, DevicePtr from, uint64_t bytes,
                      Stream stream) {
  {
    const std::lock_guard lock(mutex_);
    BRAID_RETURN_IF_ERROR(begin_on_stream(name, stream));
    BRAID_RETURN_IF_ERROR(check_range(name, to, bytes));
    BRAID_RETURN_IF_ERROR(check_range(name, from, bytes));
  }
  // A flag is written at once, as by a GPU, and others may be looking at it.
  if (bytes == sizeof(uint64_t) && to % sizeof(uint64_t) == 0 && from % sizeof(uint64_t) == 0)
    std::atomic_ref(*pointer_to<uint64_t>(to))
        .store(*pointer_to<uint64_t>(from), std::memory_order_release);
  else if (bytes > 0)
    std::memmove(pointer_to<void>(to), pointer_to<void>(from), bytes);
  return {};
}

Status FakeCuda::copy(DevicePtr to, DevicePtr from, uint64_t bytes, Stream stream) {
  return move("copy", to, from, bytes, stream);
}

Status FakeCuda::copy_on_device(DevicePtr to, DevicePtr from, uint64_t bytes, Stream stream) {
  return move("copy_on_device", to, from, bytes, stream);
}

Status FakeCuda::copy_batch(std::span<const DeviceCopy> copies, Stream stream) {
  for (const DeviceCopy& copy : copies)
    BRAID_RETURN_IF_ERROR(copy_on_device(copy.to, copy.from, copy.bytes, stream));
  return {};
}

Status FakeCuda::fill(DevicePtr to, uint8_t value, uint64_t bytes, Stream stream) {
  {
    const std::lock_guard lock(mutex_);
    BRAID_RETURN_IF_ERROR(begin_on_stream("fill", stream));
    BRAID_RETURN_IF_ERROR(check_range("fill", to, bytes));
  }
  // A word is written at once, as by a GPU: kernels may be looking at it.
  if (bytes == sizeof(uint32_t) && to % sizeof(uint32_t) == 0)
    std::atomic_ref(*pointer_to<uint32_t>(to))
        .store(0x01010101U * value, std::memory_order_relaxed);
  else if (bytes > 0)
    std::memset(pointer_to<void>(to), value, bytes);
  return {};
}

Result<IpcHandle> FakeCuda::export_ipc(DevicePtr memory) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_in_context("export_ipc"));
  const auto found = entry_holding(blocks_, memory, kBytesOf);
  if (found == blocks_.end())
    return driver_error("fake cuda: export_ipc: {:#x} does not come from alloc()", memory);
  IpcHandle handle;
  const NamedBlock block{found->first, found->second.buffer_id};
  std::memcpy(handle.bytes.data(), &block, sizeof block);
  return handle;
}

Result<DevicePtr> FakeCuda::open_ipc(const IpcHandle& handle) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_in_context("open_ipc"));
  NamedBlock named{};
  std::memcpy(&named, handle.bytes.data(), sizeof named);
  const auto found = blocks_.find(named.base);
  if (found == blocks_.end() || found->second.buffer_id != named.buffer_id)
    return driver_error("fake cuda: open_ipc: that memory is gone");
  opened_.insert(named.base);
  return named.base;
}

Status FakeCuda::close_ipc(DevicePtr memory) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_in_context("close_ipc"));
  const auto found = opened_.find(memory);
  if (found == opened_.end()) return driver_error("fake cuda: close_ipc: {:#x} not open", memory);
  opened_.erase(found);
  return {};
}

}  // namespace braid::sys
