// GPUs in host memory. Device addresses are host addresses, so a test may look at them directly.
// Everything enqueued is done before the call returns; kernels are functions that the test brings.
//
// It is stricter than the driver where that finds mistakes: calls that need a current context
// refuse to work without one, copies must stay inside one allocation, handles must be alive, and
// what was not given back can be counted. Memory of create_allocation() is a memfd, so that
// exported file descriptors work between processes and nothing can be read before allow_access(); a
// handle's number is given to the next allocation as soon as nobody has it and nothing is mapped by
// it.
// open_ipc() works in the exporting process too, because there ranks are threads.
//
// Threads: any; one mutex, which is not held while bytes move, so that ThreadSanitizer sees the
// races that a test has.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "sys/cuda/api.h"

namespace braid::sys {

/// What was made and not yet given back.
struct FakeCudaCounts {
  uint64_t memory = 0;       // alloc
  uint64_t ipc = 0;          // open_ipc
  uint64_t hosts = 0;        // register_host
  uint64_t allocations = 0;  // create_, retain_, import_allocation
  uint64_t addresses = 0;    // reserve_addresses
  uint64_t mappings = 0;     // map
  uint64_t streams = 0, events = 0, modules = 0;
  friend bool operator==(const FakeCudaCounts&, const FakeCudaCounts&) = default;
};

class FakeCuda : public Cuda {
 public:
  using HostKernel = std::function<Status(const LaunchShape&, std::span<void*> arguments)>;

  /// `num_devices` H200-like GPUs, all of which reach each other.
  explicit FakeCuda(int num_devices = 1);
  ~FakeCuda() override;

  /// The `nth` call (from 0, from now on) of the method `name` answers `why` and does nothing.
  void fail(const std::string& name, uint64_t nth, Status why);
  /// What launch_kernel() runs for the kernel `name`.
  void define_kernel(const std::string& name, HostKernel kernel);
  /// The names that kernel() has found so far.
  std::set<std::string> kernels_found() const;
  void forbid_peer(int device, int peer);
  FakeCudaCounts alive() const;

  Status ready() override { return {}; }
  Result<int> driver_version() override { return 13000; }
  Result<int> num_devices() override;
  Result<DeviceFacts> device(int device) override;
  Result<bool> has_native_atomics(int device, int peer) override;
  Status use_device(int device) override;
  Result<Context> current_context() override;
  Status set_current_context(Context context) override;
  Result<int> current_device() override;
  Result<Context> retain_primary_context(int device) override;
  Status release_primary_context(int device) override;
  Status enable_peer_access(int peer) override;

  Result<DevicePtr> alloc(uint64_t bytes) override;
  Status free(DevicePtr memory) override;
  Result<PointerFacts> pointer_facts(DevicePtr address) override;
  Result<AddressRange> address_range(DevicePtr address) override;
  Result<DevicePtr> register_host(void* memory, uint64_t bytes) override;
  Status unregister_host(void* memory) override;
  Status copy(DevicePtr to, DevicePtr from, uint64_t bytes, Stream stream) override;
  Status copy_on_device(DevicePtr to, DevicePtr from, uint64_t bytes, Stream stream) override;
  Status copy_batch(std::span<const DeviceCopy> copies, Stream stream) override;
  Status fill(DevicePtr to, uint8_t value, uint64_t bytes, Stream stream) override;

  Result<uint64_t> allocation_granularity(int device) override;
  Result<Allocation> create_allocation(const AllocationRequest& request) override;
  Result<Allocation> retain_allocation(DevicePtr mapped) override;
  Status release_allocation(Allocation allocation) override;
  Result<Fd> export_allocation(Allocation allocation) override;
  Result<Allocation> import_allocation(int fd) override;
  Result<DevicePtr> reserve_addresses(uint64_t bytes, uint64_t alignment_bytes) override;
  Status free_addresses(DevicePtr base, uint64_t bytes) override;
  Status map(DevicePtr at, uint64_t bytes, Allocation allocation) override;
  Status unmap(DevicePtr at, uint64_t bytes) override;
  Status allow_access(DevicePtr at, uint64_t bytes, int device) override;

  Result<IpcHandle> export_ipc(DevicePtr memory) override;
  Result<DevicePtr> open_ipc(const IpcHandle& handle) override;
  Status close_ipc(DevicePtr memory) override;

  Result<Stream> create_stream(StreamPriority priority) override;
  Status destroy_stream(Stream stream) override;
  Result<bool> is_done(Stream stream) override;
  Status synchronize(Stream stream) override;
  Status synchronize_device() override;
  Result<CaptureState> capture_state(Stream stream) override;
  Result<uint64_t> capture_id(Stream stream) override;
  Result<CaptureMode> exchange_capture_mode(CaptureMode mode) override;
  Result<Event> create_event(EventTiming timing) override;
  Status destroy_event(Event event) override;
  Status record(Event event, Stream stream) override;
  Status wait_event(Stream stream, Event event) override;
  Result<bool> is_done(Event event) override;
  Result<int64_t> elapsed_ns(Event begin, Event end) override;

  Result<Module> load_module(std::span<const std::byte> fatbin) override;
  Status unload_module(Module module) override;
  Result<Kernel> kernel(Module module, const char* name) override;
  Status allow_shared_bytes(Kernel kernel, uint32_t bytes) override;
  Status wait_value(Stream stream, DevicePtr at, uint32_t value) override;
  Result<TensorMap> tensor_map(const TensorLayout& layout) override;
  Status launch_kernel(Kernel kernel, const LaunchShape& shape, Stream stream,
                       std::span<void*> arguments) override;

 private:
  struct Block;     // one alloc()
  struct Physical;  // the bytes of an Allocation
  struct Mapping;
  struct Held;  // an Allocation's handle that somebody has
  struct EventState;

  // All of these want the mutex.
  Status begin(const char* name);
  Status begin_in_context(const char* name);
  Status begin_on_stream(const char* name, Stream stream);
  Status check_device(const char* name, int device) const;
  Status check_range(const char* name, DevicePtr address, uint64_t bytes) const;
  int device_of_thread() const;
  EventState* find(Event event);
  Allocation add(std::shared_ptr<Physical> physical);
  uint64_t free_handle() const;
  uint64_t accessible_bytes(DevicePtr address) const;
  const Block* block_at(DevicePtr address) const;
  const Mapping* mapping_at(DevicePtr address) const;
  Status move(const char* name, DevicePtr to, DevicePtr from, uint64_t bytes, Stream stream);

  mutable std::mutex mutex_;
  const int num_devices_;
  std::map<std::string, std::map<uint64_t, Status>> faults_;  // by method, by call number
  std::map<std::string, uint64_t> num_calls_;
  std::map<std::string, HostKernel> kernels_;
  std::set<std::string> kernels_found_;
  std::set<std::pair<int, int>> forbidden_peers_;
  std::map<std::thread::id, Context> current_;
  std::map<int, uint64_t> num_retains_;
  uint64_t last_id_ = 0;

  std::map<DevicePtr, Block> blocks_;
  std::map<DevicePtr, uint64_t> reservations_;  // base to bytes
  std::map<DevicePtr, Mapping> mappings_;
  std::map<uint64_t, Held> allocations_;  // by handle
  std::multiset<DevicePtr> opened_;
  std::map<DevicePtr, uint64_t> hosts_;  // base to bytes
  std::set<void*> streams_, modules_;
  std::map<void*, EventState> events_;
};

}  // namespace braid::sys
