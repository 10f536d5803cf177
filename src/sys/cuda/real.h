// The real driver. One class in three files by subject: devices and contexts (real.cc), memory
// (real_memory.cc), streams, events and kernels (real_stream.cc).
#pragma once

#include <fmt/core.h>

#include <mutex>
#include <type_traits>
#include <vector>

#include "sys/cuda/api.h"
#include "sys/cuda/driver.h"

namespace braid::sys {

namespace cuda_driver {
// CUresult, those that are told apart here.
constexpr int kSuccess = 0;
constexpr int kOutOfMemory = 2;
constexpr int kNoDevice = 100;
constexpr int kInvalidContext = 201;
constexpr int kNoBinaryForGpu = 209;
constexpr int kNotReady = 600;
constexpr int kPeerAccessAlreadyEnabled = 704;
constexpr int kNotSupported = 801;

/// The object of a call, put into words only when the call failed.
template <typename... Args>
auto about(fmt::format_string<const Args&...> text, const Args&... args) {
  return [=] { return fmt::format(text, args...); };
}
}  // namespace cuda_driver

class RealCuda : public Cuda {
 public:
  RealCuda();

  Status ready() override { return status_; }
  Result<int> driver_version() override;
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
  /// Makes the call when there is a driver; `object` words what it was about when it fails.
  template <typename... Params, typename Object>
  Status call(const cuda_driver::Call<Params...>& function, const Object& object,
              std::type_identity_t<Params>... args) const {
    BRAID_RETURN_IF_ERROR(status_);
    const int rc = function(args...);
    if (rc == cuda_driver::kSuccess) [[likely]]
      return {};
    return failed(function.name, object(), rc);
  }
  Status failed(const char* call, const std::string& object, int rc) const;
  std::string error_text(int rc) const;

  Result<int> device_of(int ordinal) const;
  int attribute(int device, int which, int otherwise) const;
  /// A query's answer: done, not yet, or failed.
  Result<bool> done_of(const char* call, const std::string& object, int rc) const;

  cuda_driver::Driver driver_;
  Status status_;
  std::mutex mutex_;               // guards contexts_
  std::vector<Context> contexts_;  // by device: primary contexts that use_device() retained
};

}  // namespace braid::sys
