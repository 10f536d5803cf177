// Our declarations against the driver's own header, where the build has one.
#include "sys/cuda/driver.h"

#include <gtest/gtest.h>

namespace braid::sys::cuda_driver {
namespace {

// Else nothing told two captures apart there, and calls of one graph on two streams were not ordered.
TEST(CudaDriver, CapturesAreToldApartByOlderDriversToo) {
  Driver driver;
  EXPECT_STREQ(driver.stream_capture_before.name, "cuStreamGetCaptureInfo_v2");
  driver.stream_capture.function = nullptr;  // CUDA 12.2
  driver.stream_capture_before.function = [](auto, int* state, Driver::Flags64* id, auto, auto,
                                             auto) {
    *state = 1;
    *id = 42;
    return 0;
  };
  int state = 0;
  Driver::Flags64 id = 0;
  EXPECT_EQ(capture_of(driver, nullptr, &state, &id), 0);
  EXPECT_EQ(state, 1);
  EXPECT_EQ(id, 42u);
  driver.stream_capture_before.function = nullptr;
  EXPECT_NE(capture_of(driver, nullptr, &state, &id), 0) << "rather than no answer that is one";
}

}  // namespace
}  // namespace braid::sys::cuda_driver

#if __has_include(<cuda.h>)
#include <cuda.h>

#include <type_traits>

namespace braid::sys::cuda_driver {
namespace {

// Enumerations stand against int, all pointers against each other; sizes must be equal.
template <typename Theirs, typename Ours>
constexpr bool kIsSame =
    sizeof(Theirs) == sizeof(Ours) && std::is_pointer_v<Theirs> == std::is_pointer_v<Ours> &&
    std::is_class_v<Theirs> == std::is_class_v<Ours>;

template <typename... Theirs, typename... Ours>
constexpr bool is_same_call(CUresult (*)(Theirs...), const Call<Ours...>*) {
  if constexpr (sizeof...(Theirs) == sizeof...(Ours))
    return (kIsSame<Theirs, Ours> && ...);
  else
    return false;
}

#define TEXT_OF_EXPANDED(name) #name
#define TEXT_OF(name) TEXT_OF_EXPANDED(name)
// Prototype and versioned name of one entry point.
#define EXPECT_DECLARED(member, theirs)                                              \
  static_assert(is_same_call(static_cast<decltype(&theirs)>(nullptr),                \
                             static_cast<const decltype(Driver::member)*>(nullptr)), \
                #theirs);                                                            \
  EXPECT_STREQ(driver.member.name, TEXT_OF(theirs))

TEST(CudaDriver, DevicesAreDeclaredAsInTheHeader) {
  const Driver driver;
  EXPECT_DECLARED(error_name, cuGetErrorName);
  EXPECT_DECLARED(error_string, cuGetErrorString);
  EXPECT_DECLARED(init, cuInit);
  EXPECT_DECLARED(version, cuDriverGetVersion);
  EXPECT_DECLARED(device_count, cuDeviceGetCount);
  EXPECT_DECLARED(device_get, cuDeviceGet);
  EXPECT_DECLARED(device_name, cuDeviceGetName);
  EXPECT_DECLARED(device_pci, cuDeviceGetPCIBusId);
  EXPECT_DECLARED(device_memory, cuDeviceTotalMem);
  EXPECT_DECLARED(device_attribute, cuDeviceGetAttribute);
  EXPECT_DECLARED(context_retain, cuDevicePrimaryCtxRetain);
  EXPECT_DECLARED(context_release, cuDevicePrimaryCtxRelease);
  EXPECT_DECLARED(context_set, cuCtxSetCurrent);
  EXPECT_DECLARED(context_get, cuCtxGetCurrent);
  EXPECT_DECLARED(context_device, cuCtxGetDevice);
  EXPECT_DECLARED(context_peer, cuCtxEnablePeerAccess);
}

TEST(CudaDriver, MemoryIsDeclaredAsInTheHeader) {
  static_assert(sizeof(CUmemAllocationProp) == sizeof(MemAllocationProp));
  static_assert(offsetof(CUmemAllocationProp, location) == offsetof(MemAllocationProp, location));
  static_assert(offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable) ==
                offsetof(MemAllocationProp, gpu_direct_rdma_capable));
  static_assert(sizeof(CUmemAccessDesc) == sizeof(MemAccessDesc));
  static_assert(sizeof(CUipcMemHandle) == sizeof(IpcMemHandle));
  const Driver driver;
  EXPECT_DECLARED(mem_alloc, cuMemAlloc);
  EXPECT_DECLARED(mem_free, cuMemFree);
  EXPECT_DECLARED(mem_range, cuMemGetAddressRange);
  EXPECT_DECLARED(pointer_attributes, cuPointerGetAttributes);
  EXPECT_DECLARED(host_register, cuMemHostRegister);
  EXPECT_DECLARED(host_unregister, cuMemHostUnregister);
  EXPECT_DECLARED(host_pointer, cuMemHostGetDevicePointer);
  EXPECT_DECLARED(memcpy_any, cuMemcpyAsync);
  EXPECT_DECLARED(memcpy_device, cuMemcpyDtoDAsync);
#if CUDA_VERSION >= 13000  // another prototype before
  EXPECT_DECLARED(memcpy_batch, cuMemcpyBatchAsync);
  static_assert(sizeof(CUmemcpyAttributes) == sizeof(MemcpyAttributes));
  static_assert(offsetof(CUmemcpyAttributes, flags) == offsetof(MemcpyAttributes, flags));
#endif
  EXPECT_DECLARED(memset_bytes, cuMemsetD8Async);
  EXPECT_DECLARED(granularity, cuMemGetAllocationGranularity);
  EXPECT_DECLARED(create, cuMemCreate);
  EXPECT_DECLARED(retain, cuMemRetainAllocationHandle);
  EXPECT_DECLARED(release, cuMemRelease);
  EXPECT_DECLARED(export_handle, cuMemExportToShareableHandle);
  EXPECT_DECLARED(import_handle, cuMemImportFromShareableHandle);
  EXPECT_DECLARED(reserve, cuMemAddressReserve);
  EXPECT_DECLARED(address_free, cuMemAddressFree);
  EXPECT_DECLARED(map, cuMemMap);
  EXPECT_DECLARED(unmap, cuMemUnmap);
  EXPECT_DECLARED(set_access, cuMemSetAccess);
  EXPECT_DECLARED(ipc_get, cuIpcGetMemHandle);
  EXPECT_DECLARED(ipc_open, cuIpcOpenMemHandle);
  EXPECT_DECLARED(ipc_close, cuIpcCloseMemHandle);
}

TEST(CudaDriver, StreamsAreDeclaredAsInTheHeader) {
  const Driver driver;
  EXPECT_DECLARED(stream_priorities, cuCtxGetStreamPriorityRange);
  EXPECT_DECLARED(stream_create, cuStreamCreateWithPriority);
  EXPECT_DECLARED(stream_destroy, cuStreamDestroy);
  EXPECT_DECLARED(stream_query, cuStreamQuery);
  EXPECT_DECLARED(stream_synchronize, cuStreamSynchronize);
  EXPECT_DECLARED(context_synchronize, cuCtxSynchronize);
  EXPECT_DECLARED(stream_capturing, cuStreamIsCapturing);
#if CUDA_VERSION >= 13000  // the plain name is an older one's before
  EXPECT_DECLARED(stream_capture, cuStreamGetCaptureInfo);
#else
  EXPECT_DECLARED(stream_capture_before, cuStreamGetCaptureInfo_v2);
#endif
  EXPECT_DECLARED(capture_mode, cuThreadExchangeStreamCaptureMode);
  EXPECT_DECLARED(stream_wait_event, cuStreamWaitEvent);
  EXPECT_DECLARED(event_create, cuEventCreate);
  EXPECT_DECLARED(event_destroy, cuEventDestroy);
  EXPECT_DECLARED(event_record, cuEventRecord);
  EXPECT_DECLARED(event_query, cuEventQuery);
  EXPECT_STREQ(driver.event_elapsed.name, "cuEventElapsedTime");  // older than the header's
  EXPECT_DECLARED(module_load, cuModuleLoadData);
  EXPECT_DECLARED(module_unload, cuModuleUnload);
  EXPECT_DECLARED(module_function, cuModuleGetFunction);
  EXPECT_DECLARED(function_set, cuFuncSetAttribute);
  EXPECT_DECLARED(launch, cuLaunchKernel);
}

}  // namespace
}  // namespace braid::sys::cuda_driver
#else
TEST(CudaDriver, IsDeclaredAsInTheHeader) { GTEST_SKIP() << "skipped: no cuda.h"; }
#endif
