#include "sys/cuda/real.h"

#include <algorithm>
#include <cctype>

#include "sys/sysfs/api.h"

namespace braid::sys {

using namespace cuda_driver;  // NOLINT(google-build-using-namespace): the driver's own words

namespace {

enum Attribute {  // CUdevice_attribute
  kMultiprocessors = 16,
  kCopyEngines = 40,
  kComputeMajor = 75,
  kComputeMinor = 76,
  // CUDA 12 gives the 32-bit operations to every device and tells only of the 64-bit ones.
  kSharedBytesOptin = 97,
  kPosixFdHandles = 103,
  kRdma = 116,
  kMulticast = 132,
};

}  // namespace

RealCuda::RealCuda() {
  if (const std::string& why = driver_.library.what_is_wrong(); !why.empty()) {
    status_ = unavailable("cuda: {}", why);
    return;
  }
  if (const int rc = driver_.init(0); rc != kSuccess)
    status_ = unavailable("cuda: cuInit: {}", error_text(rc));
}

std::string RealCuda::error_text(int rc) const {
  const char* name = nullptr;
  const char* text = nullptr;
  driver_.error_name(rc, &name);
  driver_.error_string(rc, &text);
  return fmt::format("{}: {} ({})", name != nullptr ? name : "unknown", text != nullptr ? text : "",
                     rc);
}

Status RealCuda::failed(const char* call, const std::string& object, int rc) const {
  const Code code = rc == kOutOfMemory                             ? Code::kExhausted
                    : rc == kNoDevice                              ? Code::kUnavailable
                    : rc == kNotSupported || rc == kNoBinaryForGpu ? Code::kUnsupported
                                                                   : Code::kDriver;
  return {code, fmt::format("cuda: {} of {}: {}", call, object, error_text(rc))};
}

Result<int> RealCuda::driver_version() {
  int version = 0;
  BRAID_RETURN_IF_ERROR(call(driver_.version, about("the driver"), &version));
  return version;
}

Result<int> RealCuda::num_devices() {
  int count = 0;
  BRAID_RETURN_IF_ERROR(call(driver_.device_count, about("the driver"), &count));
  return count;
}

Result<int> RealCuda::device_of(int ordinal) const {
  int device = -1;
  BRAID_RETURN_IF_ERROR(call(driver_.device_get, about("device {}", ordinal), &device, ordinal));
  return device;
}

// Drivers that are older than an attribute refuse it.
int RealCuda::attribute(int device, int which, int otherwise) const {
  int value = 0;
  return driver_.device_attribute(&value, which, device) == kSuccess ? value : otherwise;
}

Result<DeviceFacts> RealCuda::device(int ordinal) {
  BRAID_ASSIGN_OR_RETURN(const int device, device_of(ordinal));
  const auto object = about("device {}", ordinal);
  char name[128] = "";
  char pci[32] = "";
  size_t memory_bytes = 0;
  BRAID_RETURN_IF_ERROR(call(driver_.device_name, object, name, sizeof name, device));
  BRAID_RETURN_IF_ERROR(call(driver_.device_pci, object, pci, sizeof pci, device));
  BRAID_RETURN_IF_ERROR(call(driver_.device_memory, object, &memory_bytes, device));
  DeviceFacts facts;
  facts.name = name;
  facts.pci_address = pci;
  std::transform(facts.pci_address.begin(), facts.pci_address.end(), facts.pci_address.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  facts.memory_bytes = memory_bytes;
  // The driver's own attribute (HOST_NUMA_ID) came with CUDA 12.2; sysfs has always known.
  facts.numa_node = static_cast<int>(
      real_sysfs().read_integer("/sys/bus/pci/devices/" + facts.pci_address + "/numa_node", -1));
  facts.num_sms = attribute(device, kMultiprocessors, 0);
  facts.num_copy_engines = attribute(device, kCopyEngines, 0);
  facts.compute_major = attribute(device, kComputeMajor, 0);
  facts.compute_minor = attribute(device, kComputeMinor, 0);
  facts.max_shared_bytes_per_block = attribute(device, kSharedBytesOptin, 0);
  facts.can_export_fd = attribute(device, kPosixFdHandles, 0) != 0;
  facts.is_rdma_capable = attribute(device, kRdma, 0) != 0;
  facts.has_multicast = attribute(device, kMulticast, 0) != 0;
  return facts;
}

Result<bool> RealCuda::has_native_atomics(int device, int peer) {
  constexpr int kPeerNativeAtomics = 3;  // of CUdevice_P2PAttribute
  BRAID_ASSIGN_OR_RETURN(const int from, device_of(device));
  BRAID_ASSIGN_OR_RETURN(const int to, device_of(peer));
  if (from == to) return true;
  int has = 0;
  BRAID_RETURN_IF_ERROR(call(driver_.device_peer_attribute, about("device {} to {}", device, peer),
                             &has, kPeerNativeAtomics, from, to));
  return has != 0;
}

Status RealCuda::use_device(int device) {
  BRAID_RETURN_IF_ERROR(device_of(device).status());
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<size_t>(device);
  if (contexts_.size() <= index) contexts_.resize(index + 1);
  if (contexts_[index].handle == nullptr) {
    BRAID_ASSIGN_OR_RETURN(contexts_[index], retain_primary_context(device));
  }
  return set_current_context(contexts_[index]);
}

Result<Context> RealCuda::current_context() {
  Context context;
  BRAID_RETURN_IF_ERROR(call(driver_.context_get, about("this thread"), &context.handle));
  return context;
}

Status RealCuda::set_current_context(Context context) {
  return call(driver_.context_set, about("context {}", context.handle), context.handle);
}

Result<int> RealCuda::current_device() {
  BRAID_RETURN_IF_ERROR(status_);
  int device = -1;
  const int rc = driver_.context_device(&device);
  if (rc == kInvalidContext)
    return unavailable("cuda: this thread has no current context; call use_device() first");
  if (rc != kSuccess) return failed(driver_.context_device.name, "this thread", rc);
  return device;
}

Result<Context> RealCuda::retain_primary_context(int ordinal) {
  BRAID_ASSIGN_OR_RETURN(const int device, device_of(ordinal));
  Context context;
  BRAID_RETURN_IF_ERROR(
      call(driver_.context_retain, about("device {}", ordinal), &context.handle, device));
  return context;
}

Status RealCuda::release_primary_context(int ordinal) {
  BRAID_ASSIGN_OR_RETURN(const int device, device_of(ordinal));
  return call(driver_.context_release, about("device {}", ordinal), device);
}

Status RealCuda::enable_peer_access(int peer) {
  BRAID_ASSIGN_OR_RETURN(const Context context, retain_primary_context(peer));
  const int rc = driver_.context_peer(context.handle, 0);
  BRAID_RETURN_IF_ERROR(release_primary_context(peer));
  if (rc == kSuccess || rc == kPeerAccessAlreadyEnabled) return {};
  return failed(driver_.context_peer.name, fmt::format("device {}", peer), rc);
}

Cuda& real_cuda() {
  static RealCuda real;
  return real;
}

}  // namespace braid::sys
