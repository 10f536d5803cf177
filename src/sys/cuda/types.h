// The words in which braid speaks of CUDA's objects. Handles are opaque and belong to the driver;
// sys/cuda/owned.h gives them owners.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

namespace braid::sys {

/// An address in device memory, or of host memory as the device sees it.
using DevicePtr = uint64_t;

/// The address as kernels' arguments hold it. The host never follows it.
template <typename T>
T* pointer_to(DevicePtr address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr)
}

/// The other way round.
inline DevicePtr address_of(const void* memory) { return reinterpret_cast<DevicePtr>(memory); }

struct Context {
  void* handle = nullptr;  // null: none
  friend bool operator==(Context, Context) = default;
};
struct Stream {
  void* handle = nullptr;  // null: the legacy default stream
  friend bool operator==(Stream, Stream) = default;
};
struct Event {
  void* handle = nullptr;
  friend bool operator==(Event, Event) = default;
};
struct Module {
  void* handle = nullptr;
  friend bool operator==(Module, Module) = default;
};
/// One function of a module; lives as long as the module.
struct Kernel {
  void* handle = nullptr;
  friend bool operator==(Kernel, Kernel) = default;
};
/// Physical memory that has no address until it is mapped.
struct Allocation {
  uint64_t handle = 0;
  friend bool operator==(Allocation, Allocation) = default;
};

/// What a device is. What the driver does not tell is 0, false or, for the NUMA node, -1.
struct DeviceFacts {
  std::string name;
  std::string pci_address;  // "0000:1b:00.0", lower case, as sysfs writes it
  uint64_t memory_bytes = 0;
  int numa_node = -1;
  int num_sms = 0;
  int num_copy_engines = 0;
  int compute_major = 0, compute_minor = 0;
  int max_shared_bytes_per_block = 0;  // after Cuda::allow_shared_bytes
  bool can_export_fd = false;          // export_allocation
  bool is_rdma_capable = false;        // NICs may reach its memory (GPUDirect RDMA)
  bool has_multicast = false;  // NVLink SHARP: others may sum in the switches; braid does not
};

struct DeviceCopy {
  DevicePtr to = 0, from = 0;
  uint64_t bytes = 0;
};

enum class MemoryKind { kForeign, kHost, kDevice, kManaged };

/// What CUDA knows about an address; kForeign when it knows nothing, e.g. for plain host memory.
struct PointerFacts {
  MemoryKind kind = MemoryKind::kForeign;
  int device = -1;
  uint64_t buffer_id = 0;              // unique for the life of the process, unlike an address
  bool is_legacy_ipc_capable = false;  // false for memory from create_allocation
  bool can_export_fd = false;
};

struct AddressRange {
  DevicePtr base = 0;
  uint64_t bytes = 0;
  friend bool operator==(AddressRange, AddressRange) = default;
};

struct AllocationRequest {
  int device = 0;
  uint64_t bytes = 0;            // a multiple of allocation_granularity()
  bool is_rdma_capable = false;  // ask only where DeviceFacts says so
};

/// Names a cuMemAlloc allocation to another process of the same host.
struct IpcHandle {
  std::array<char, 64> bytes{};
  friend bool operator==(const IpcHandle&, const IpcHandle&) = default;
};

enum class StreamPriority { kNormal, kHigh };
enum class EventTiming { kOff, kOn };
enum class CaptureState { kNone, kActive, kInvalidated };
/// What a thread may not do while streams are captured, by it or (kGlobal) by any thread: calls
/// that are no work for a stream, such as alloc(). kRelaxed: everything may be done.
enum class CaptureMode { kGlobal, kThreadLocal, kRelaxed };

/// Where the copy engines of multiprocessors find tiles: up to three dimensions of 16-bit elements,
/// the innermost first. Tiles lie in shared memory as rows of 128 bytes, in the 128-byte swizzle;
/// what of a tile is outside is read as zeros and not written.
struct TensorLayout {
  enum class Element { kFp16, kBf16 };
  DevicePtr at = 0;  // a multiple of 16
  Element element = Element::kBf16;
  std::array<uint64_t, 3> extent{};        // in elements, 1 or more
  std::array<uint64_t, 2> stride_bytes{};  // of the two outer ones, multiples of 16
  std::array<uint32_t, 3> box{};           // of a tile: 64 elements, up to 256 rows, 1
};
/// What the driver makes of it, for kernels' arguments alone.
struct alignas(64) TensorMap {
  std::array<uint64_t, 16> words{};
};

struct LaunchShape {
  uint32_t num_blocks = 1;
  uint32_t num_threads = 1;   // of one block
  uint32_t shared_bytes = 0;  // dynamic shared memory of one block
};

}  // namespace braid::sys
