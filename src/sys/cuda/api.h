// CUDA's driver interface, as much of it as braid needs. libcuda.so.1 is opened at run time, so one
// binary runs with and without a GPU; there is no CUDA runtime (cudart) anywhere.
//
// Calls are thin: they name what failed and hide nothing. Unless a comment says otherwise a call
// works in the calling thread's current context, which use_device() sets; work on a Stream is in
// order and has only been enqueued when the call returns. Whatever the work of a stream met shows
// at a later call.
//
// There are no multicast objects here, and none may be added: braid must be fast without them.
//
// Threads: any number at once; the current context belongs to each thread.
#pragma once

#include <span>

#include "base/status.h"
#include "sys/cuda/types.h"
#include "sys/fd.h"

namespace braid::sys {

class Cuda {
 public:
  virtual ~Cuda() = default;

  // --- devices and contexts (no current context needed) ---

  /// ok when there is a driver that can be used; unavailable tells what the loader or cuInit said,
  /// and so does every other call.
  virtual Status ready() = 0;
  /// 13000 is CUDA 13.0.
  virtual Result<int> driver_version() = 0;
  virtual Result<int> num_devices() = 0;
  virtual Result<DeviceFacts> device(int device) = 0;
  /// Whether the link between them carries atomic operations: NVLink does, PCIe does not.
  virtual Result<bool> has_native_atomics(int device, int peer) = 0;
  /// Makes the device's primary context, which all libraries of a process share, the calling
  /// thread's current one. The first use retains it for the life of the process.
  virtual Status use_device(int device) = 0;
  /// The calling thread's context; a null handle when it has none.
  virtual Result<Context> current_context() = 0;
  virtual Status set_current_context(Context context) = 0;
  /// The device of the current context; unavailable when there is none.
  virtual Result<int> current_device() = 0;
  /// Every retain needs its release; the context ends with the last.
  virtual Result<Context> retain_primary_context(int device) = 0;
  virtual Status release_primary_context(int device) = 0;
  /// Lets the current context reach what `peer`'s primary context allocates with alloc(), in this
  /// process. ok when it already may.
  virtual Status enable_peer_access(int peer) = 0;

  // --- memory ---

  /// At least 256-byte aligned. exhausted when there is not enough.
  virtual Result<DevicePtr> alloc(uint64_t bytes) = 0;
  virtual Status free(DevicePtr memory) = 0;
  virtual Result<PointerFacts> pointer_facts(DevicePtr address) = 0;
  /// The whole allocation or mapping that holds `address`.
  virtual Result<AddressRange> address_range(DevicePtr address) = 0;
  /// Pins host memory and maps it into all contexts. Answers the device's address of it.
  virtual Result<DevicePtr> register_host(void* memory, uint64_t bytes) = 0;
  virtual Status unregister_host(void* memory) = 0;
  /// Between any two of device, peer and host memory. Host memory that is not registered makes the
  /// copy synchronous.
  virtual Status copy(DevicePtr to, DevicePtr from, uint64_t bytes, Stream stream) = 0;
  /// The same where both ends are device memory: the driver need not ask what they are.
  virtual Status copy_on_device(DevicePtr to, DevicePtr from, uint64_t bytes, Stream stream) = 0;
  /// Several of these, in no order among each other, each after what the stream holds. In one go
  /// where the driver can (CUDA 13, a stream that is no legacy one and is not captured), which
  /// saves what lies between two copies of a stream.
  virtual Status copy_batch(std::span<const DeviceCopy> copies, Stream stream) = 0;
  virtual Status fill(DevicePtr to, uint8_t value, uint64_t bytes, Stream stream) = 0;

  // --- memory in two halves, bytes and addresses, so that other processes can map the bytes ---

  /// Unit of sizes, offsets and alignment below.
  virtual Result<uint64_t> allocation_granularity(int device) = 0;
  /// Memory that can be exported as a file descriptor. Needs no context.
  virtual Result<Allocation> create_allocation(const AllocationRequest& request) = 0;
  /// The allocation behind a mapped address, with a reference that needs its own release.
  virtual Result<Allocation> retain_allocation(DevicePtr mapped) = 0;
  /// Gives up one reference. The bytes live on while they are mapped or another process has them.
  virtual Status release_allocation(Allocation allocation) = 0;
  virtual Result<Fd> export_allocation(Allocation allocation) = 0;
  /// The caller keeps `fd` and may close it at once.
  virtual Result<Allocation> import_allocation(int fd) = 0;
  /// `alignment_bytes` 0: the driver's own choice.
  virtual Result<DevicePtr> reserve_addresses(uint64_t bytes, uint64_t alignment_bytes) = 0;
  virtual Status free_addresses(DevicePtr base, uint64_t bytes) = 0;
  /// Nobody can reach the bytes before allow_access().
  virtual Status map(DevicePtr at, uint64_t bytes, Allocation allocation) = 0;
  virtual Status unmap(DevicePtr at, uint64_t bytes) = 0;
  virtual Status allow_access(DevicePtr at, uint64_t bytes, int device) = 0;

  // --- memory of alloc() in another process ---

  /// Names the whole allocation that holds `memory`, not the address: send the offset along.
  virtual Result<IpcHandle> export_ipc(DevicePtr memory) = 0;
  /// Never in the process that exported it: the driver refuses.
  virtual Result<DevicePtr> open_ipc(const IpcHandle& handle) = 0;
  virtual Status close_ipc(DevicePtr memory) = 0;

  // --- streams and events ---

  /// Does not wait for the legacy default stream.
  virtual Result<Stream> create_stream(StreamPriority priority) = 0;
  /// Work that is under way goes on.
  virtual Status destroy_stream(Stream stream) = 0;
  /// Whether all work is done; a Status when some of it failed.
  virtual Result<bool> is_done(Stream stream) = 0;
  /// Blocks without a deadline: for tests and for the end of a process.
  virtual Status synchronize(Stream stream) = 0;
  /// The same for all work on the current device, whoever of this process enqueued it.
  virtual Status synchronize_device() = 0;
  virtual Result<CaptureState> capture_state(Stream stream) = 0;
  /// Tells captures apart. 0: the stream is not captured, or the driver is too old to say.
  virtual Result<uint64_t> capture_id(Stream stream) = 0;
  /// Sets the calling thread's mode; the one that held before.
  virtual Result<CaptureMode> exchange_capture_mode(CaptureMode mode) = 0;

  virtual Result<Event> create_event(EventTiming timing) = 0;
  virtual Status destroy_event(Event event) = 0;
  virtual Status record(Event event, Stream stream) = 0;
  /// Work enqueued on `stream` from now on starts after what `event` recorded.
  virtual Status wait_event(Stream stream, Event event) = 0;
  /// Whether what was recorded is done; true for an event that never recorded.
  virtual Result<bool> is_done(Event event) = 0;
  /// Work enqueued on `stream` from now on starts when the 32-bit word at `at`, which kernels or
  /// copies write, has reached `value`. Whoever writes it must be enqueued already, and not behind
  /// this: nothing else ends the wait. Not in a graph.
  virtual Status wait_value(Stream stream, DevicePtr at, uint32_t value) = 0;
  /// Both done, both with timing.
  virtual Result<int64_t> elapsed_ns(Event begin, Event end) = 0;

  // --- kernels ---

  /// A fatbin as the build embeds it. unsupported when it has no code for the current device.
  virtual Result<Module> load_module(std::span<const std::byte> fatbin) = 0;
  virtual Status unload_module(Module module) = 0;
  virtual Result<Kernel> kernel(Module module, const char* name) = 0;
  /// Dynamic shared memory over 48 KiB must be allowed once per kernel.
  virtual Status allow_shared_bytes(Kernel kernel, uint32_t bytes) = 0;
  /// unavailable where the driver is older than such maps (CUDA 12). Needs no GPU's help and no
  /// stream: a map holds an address and is good for as long as that is.
  virtual Result<TensorMap> tensor_map(const TensorLayout& layout) = 0;
  /// `arguments` point at values of exactly the parameters' types; launch() in sys/cuda/launch.h
  /// makes them.
  virtual Status launch_kernel(Kernel kernel, const LaunchShape& shape, Stream stream,
                               std::span<void*> arguments) = 0;
};

/// libcuda.so.1. Never null: without the library every call says unavailable.
Cuda& real_cuda();

}  // namespace braid::sys
