// The driver's entry points, looked up by name. The prototypes are the project's own reading of
// cuda.h (CUDA 12 and 13, which agree on all of these); tests/sys/cuda_abi_test.cc compares them
// with the real header where there is one. A name with _v2 is the symbol that the header's macro
// of the plain name stands for; the plain symbol, where it exists, has an older ABI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace braid::sys::cuda_driver {

struct MemLocation {  // CUmemLocation
  int type, id;
};
struct MemAllocationProp {  // CUmemAllocationProp
  int type, requested_handle_types;
  MemLocation location;
  void* win32_handle_meta_data;
  unsigned char compression_type, gpu_direct_rdma_capable;
  unsigned short usage;
  unsigned char reserved[4];
};
static_assert(sizeof(MemAllocationProp) == 32);
struct MemAccessDesc {  // CUmemAccessDesc
  MemLocation location;
  int flags;
};
struct MemcpyAttributes {  // CUmemcpyAttributes
  int source_access_order;
  MemLocation source_hint, destination_hint;
  unsigned flags;
};
static_assert(sizeof(MemcpyAttributes) == 24);
struct IpcMemHandle {  // CUipcMemHandle, passed by value
  char reserved[64];
};

/// libcuda.so.1, opened once and never closed: other libraries of the process use it too.
class Library {
 public:
  Library();
  void* find(const char* name);
  /// Null where the driver is too old for it, which is no error.
  void* find_newer(const char* name) const;
  /// Empty when the library is open and has every function that was looked for.
  const std::string& what_is_wrong() const { return what_is_wrong_; }

 private:
  void* library_ = nullptr;
  std::string what_is_wrong_;
};

template <typename... Args>
struct Call {
  Call(Library& library, const char* symbol)
      : name(symbol), function(reinterpret_cast<int (*)(Args...)>(library.find(symbol))) {}
  enum class Since { kNewer };  // than the oldest driver that braid runs with
  Call(const Library& library, const char* symbol, Since)
      : name(symbol), function(reinterpret_cast<int (*)(Args...)>(library.find_newer(symbol))) {}
  int operator()(Args... args) const { return function(args...); }

  const char* name;
  int (*function)(Args...);
};

struct Driver {
  using Bytes = size_t;
  using Ptr = unsigned long long;  // CUdeviceptr
  using Flags64 = unsigned long long;
  using Memory = unsigned long long;  // CUmemGenericAllocationHandle
  using Handle = void*;               // CUcontext, CUstream, CUevent, CUmodule, CUfunction

  Library library{};

  Call<int, const char**> error_name{library, "cuGetErrorName"};
  Call<int, const char**> error_string{library, "cuGetErrorString"};
  Call<unsigned> init{library, "cuInit"};
  Call<int*> version{library, "cuDriverGetVersion"};

  Call<int*> device_count{library, "cuDeviceGetCount"};
  Call<int*, int> device_get{library, "cuDeviceGet"};
  Call<char*, int, int> device_name{library, "cuDeviceGetName"};
  Call<char*, int, int> device_pci{library, "cuDeviceGetPCIBusId"};
  Call<Bytes*, int> device_memory{library, "cuDeviceTotalMem_v2"};
  Call<int*, int, int> device_attribute{library, "cuDeviceGetAttribute"};
  Call<int*, int, int, int> device_peer_attribute{library, "cuDeviceGetP2PAttribute"};

  Call<Handle*, int> context_retain{library, "cuDevicePrimaryCtxRetain"};
  Call<int> context_release{library, "cuDevicePrimaryCtxRelease_v2"};
  Call<Handle> context_set{library, "cuCtxSetCurrent"};
  Call<Handle*> context_get{library, "cuCtxGetCurrent"};
  Call<int*> context_device{library, "cuCtxGetDevice"};
  Call<Handle, unsigned> context_peer{library, "cuCtxEnablePeerAccess"};

  Call<Ptr*, Bytes> mem_alloc{library, "cuMemAlloc_v2"};
  Call<Ptr> mem_free{library, "cuMemFree_v2"};
  Call<Ptr*, Bytes*, Ptr> mem_range{library, "cuMemGetAddressRange_v2"};
  Call<unsigned, int*, void**, Ptr> pointer_attributes{library, "cuPointerGetAttributes"};
  Call<void*, Bytes, unsigned> host_register{library, "cuMemHostRegister_v2"};
  Call<void*> host_unregister{library, "cuMemHostUnregister"};
  Call<Ptr*, void*, unsigned> host_pointer{library, "cuMemHostGetDevicePointer_v2"};
  Call<Ptr, Ptr, Bytes, Handle> memcpy_any{library, "cuMemcpyAsync"};
  Call<Ptr, Ptr, Bytes, Handle> memcpy_device{library, "cuMemcpyDtoDAsync_v2"};
  // CUDA 13; the plain symbol has one parameter more.
  Call<Ptr*, Ptr*, Bytes*, Bytes, MemcpyAttributes*, Bytes*, Bytes, Handle> memcpy_batch{
      library, "cuMemcpyBatchAsync_v2", decltype(memcpy_batch)::Since::kNewer};
  Call<Ptr, unsigned char, Bytes, Handle> memset_bytes{library, "cuMemsetD8Async"};

  Call<Bytes*, const MemAllocationProp*, int> granularity{library, "cuMemGetAllocationGranularity"};
  Call<Memory*, Bytes, const MemAllocationProp*, Flags64> create{library, "cuMemCreate"};
  Call<Memory*, void*> retain{library, "cuMemRetainAllocationHandle"};
  Call<Memory> release{library, "cuMemRelease"};
  Call<void*, Memory, int, Flags64> export_handle{library, "cuMemExportToShareableHandle"};
  Call<Memory*, void*, int> import_handle{library, "cuMemImportFromShareableHandle"};
  Call<Ptr*, Bytes, Bytes, Ptr, Flags64> reserve{library, "cuMemAddressReserve"};
  Call<Ptr, Bytes> address_free{library, "cuMemAddressFree"};
  Call<Ptr, Bytes, Bytes, Memory, Flags64> map{library, "cuMemMap"};
  Call<Ptr, Bytes> unmap{library, "cuMemUnmap"};
  Call<Ptr, Bytes, const MemAccessDesc*, Bytes> set_access{library, "cuMemSetAccess"};

  Call<IpcMemHandle*, Ptr> ipc_get{library, "cuIpcGetMemHandle"};
  Call<Ptr*, IpcMemHandle, unsigned> ipc_open{library, "cuIpcOpenMemHandle_v2"};
  Call<Ptr> ipc_close{library, "cuIpcCloseMemHandle"};

  Call<int*, int*> stream_priorities{library, "cuCtxGetStreamPriorityRange"};
  Call<Handle*, unsigned, int> stream_create{library, "cuStreamCreateWithPriority"};
  Call<Handle> stream_destroy{library, "cuStreamDestroy_v2"};
  Call<Handle> stream_query{library, "cuStreamQuery"};
  Call<Handle> stream_synchronize{library, "cuStreamSynchronize"};
  Call<> context_synchronize{library, "cuCtxSynchronize"};
  Call<Handle, int*> stream_capturing{library, "cuStreamIsCapturing"};
  // CUDA 12.3. State, id, graph, dependencies, their edges' data and how many they are.
  Call<Handle, int*, Flags64*, Handle*, const Handle**, const void**, Bytes*> stream_capture{
      library, "cuStreamGetCaptureInfo_v3", decltype(stream_capture)::Since::kNewer};
  // Since CUDA 11.3: without edges' data.
  Call<Handle, int*, Flags64*, Handle*, const Handle**, Bytes*> stream_capture_before{
      library, "cuStreamGetCaptureInfo_v2", decltype(stream_capture_before)::Since::kNewer};
  Call<int*> capture_mode{library, "cuThreadExchangeStreamCaptureMode"};
  Call<Handle, Handle, unsigned> stream_wait_event{library, "cuStreamWaitEvent"};

  Call<Handle, Ptr, unsigned, unsigned> stream_wait_value{library, "cuStreamWaitValue32_v2"};

  Call<Handle*, unsigned> event_create{library, "cuEventCreate"};
  Call<Handle> event_destroy{library, "cuEventDestroy_v2"};
  Call<Handle, Handle> event_record{library, "cuEventRecord"};
  Call<Handle> event_query{library, "cuEventQuery"};
  // Not _v2, which drivers before 12.8 lack.
  Call<float*, Handle, Handle> event_elapsed{library, "cuEventElapsedTime"};

  Call<Handle*, const void*> module_load{library, "cuModuleLoadData"};
  Call<Handle> module_unload{library, "cuModuleUnload"};
  Call<Handle*, Handle, const char*> module_function{library, "cuModuleGetFunction"};
  Call<Handle, int, int> function_set{library, "cuFuncSetAttribute"};
  Call<Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**,
       void**>
      launch{library, "cuLaunchKernel"};
  // CUDA 12. Map, element, dimensions, address, extents, strides, box, steps, interleave, swizzle,
  // promotion in L2, fill.
  Call<void*, int, unsigned, void*, const Flags64*, const Flags64*, const unsigned*,
       const unsigned*, int, int, int, int>
      tensor_map{library, "cuTensorMapEncodeTiled", decltype(tensor_map)::Since::kNewer};
};

/// State and id of the capture that a stream is in, by whichever call the driver has.
int capture_of(const Driver& driver, Driver::Handle stream, int* state, Driver::Flags64* id);

}  // namespace braid::sys::cuda_driver
