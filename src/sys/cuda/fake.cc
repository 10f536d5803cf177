// Faults, counts, devices and contexts. Memory is in fake_memory.cc and fake_mapping.cc, streams,
// events and kernels in fake_stream.cc.
#include "sys/cuda/fake.h"

#include <sys/mman.h>

#include "sys/cuda/fake_state.h"

namespace braid::sys {

namespace {

// A context's handle is its device plus 1, so that none is null.
Context context_of(int device) { return {handle_of(static_cast<uint64_t>(device) + 1)}; }

}  // namespace

FakeCuda::FakeCuda(int num_devices) : num_devices_(num_devices) {}
FakeCuda::~FakeCuda() {
  for (const auto& [base, bytes] : reservations_) ::munmap(handle_of(base), bytes);
}

void FakeCuda::fail(const std::string& name, uint64_t nth, Status why) {
  const std::lock_guard lock(mutex_);
  faults_[name][num_calls_[name] + nth] = std::move(why);
}

void FakeCuda::define_kernel(const std::string& name, HostKernel kernel) {
  const std::lock_guard lock(mutex_);
  kernels_[name] = std::move(kernel);
}

void FakeCuda::forbid_peer(int device, int peer) {
  const std::lock_guard lock(mutex_);
  forbidden_peers_.insert({device, peer});
}

FakeCudaCounts FakeCuda::alive() const {
  const std::lock_guard lock(mutex_);
  uint64_t num_references = 0;
  for (const auto& [handle, held] : allocations_) num_references += held.references;
  return {.memory = blocks_.size(),
          .ipc = opened_.size(),
          .hosts = hosts_.size(),
          .allocations = num_references,
          .addresses = reservations_.size(),
          .mappings = mappings_.size(),
          .streams = streams_.size(),
          .events = events_.size(),
          .modules = modules_.size()};
}

Status FakeCuda::begin(const char* name) {
  const uint64_t number = num_calls_[name]++;
  const auto faults = faults_.find(name);
  if (faults == faults_.end()) return {};
  const auto fault = faults->second.find(number);
  return fault == faults->second.end() ? Status() : fault->second;
}

Status FakeCuda::begin_in_context(const char* name) {
  BRAID_RETURN_IF_ERROR(begin(name));
  if (device_of_thread() >= 0) return {};
  return driver_error("fake cuda: {}: CUDA_ERROR_INVALID_CONTEXT: no current context (201)", name);
}

Status FakeCuda::begin_on_stream(const char* name, Stream stream) {
  BRAID_RETURN_IF_ERROR(begin_in_context(name));
  if (stream.handle == nullptr || streams_.contains(stream.handle)) return {};
  return driver_error("fake cuda: {}: no stream {}", name, stream.handle);
}

Status FakeCuda::check_device(const char* name, int device) const {
  if (device >= 0 && device < num_devices_) return {};
  return driver_error("fake cuda: {}: device {} of {}", name, device, num_devices_);
}

int FakeCuda::device_of_thread() const {
  const auto found = current_.find(std::this_thread::get_id());
  if (found == current_.end()) return -1;
  return static_cast<int>(reinterpret_cast<uint64_t>(found->second.handle)) - 1;
}

Result<int> FakeCuda::num_devices() {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("num_devices"));
  return num_devices_;
}

Result<DeviceFacts> FakeCuda::device(int device) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("device"));
  BRAID_RETURN_IF_ERROR(check_device("device", device));
  DeviceFacts facts;
  facts.name = "NVIDIA H200";
  facts.pci_address = fmt::format("0000:{:02x}:00.0", 0x10 + 0x10 * device);
  facts.memory_bytes = uint64_t{141} << 30;
  facts.numa_node = device < (num_devices_ + 1) / 2 ? 0 : 1;
  facts.num_sms = 132;
  facts.num_copy_engines = 3;
  facts.compute_major = 9;
  facts.max_shared_bytes_per_block = 227 << 10;
  facts.can_export_fd = true;
  facts.is_rdma_capable = true;
  return facts;
}

Result<bool> FakeCuda::has_native_atomics(int device, int peer) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("has_native_atomics"));
  BRAID_RETURN_IF_ERROR(check_device("has_native_atomics", device));
  BRAID_RETURN_IF_ERROR(check_device("has_native_atomics", peer));
  return device == peer || !forbidden_peers_.contains({device, peer});
}

Status FakeCuda::use_device(int device) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("use_device"));
  BRAID_RETURN_IF_ERROR(check_device("use_device", device));
  current_[std::this_thread::get_id()] = context_of(device);
  return {};
}

Result<Context> FakeCuda::current_context() {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("current_context"));
  const auto found = current_.find(std::this_thread::get_id());
  return found == current_.end() ? Context{} : found->second;
}

Status FakeCuda::set_current_context(Context context) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("set_current_context"));
  current_[std::this_thread::get_id()] = context;
  return {};
}

Result<int> FakeCuda::current_device() {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("current_device"));
  const int device = device_of_thread();
  if (device < 0) return unavailable("fake cuda: this thread has no current context");
  return device;
}

Result<Context> FakeCuda::retain_primary_context(int device) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("retain_primary_context"));
  BRAID_RETURN_IF_ERROR(check_device("retain_primary_context", device));
  ++num_retains_[device];
  return context_of(device);
}

Status FakeCuda::release_primary_context(int device) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin("release_primary_context"));
  if (num_retains_[device] == 0)
    return driver_error("fake cuda: release_primary_context: device {} is not retained", device);
  --num_retains_[device];
  return {};
}

Status FakeCuda::enable_peer_access(int peer) {
  const std::lock_guard lock(mutex_);
  BRAID_RETURN_IF_ERROR(begin_in_context("enable_peer_access"));
  BRAID_RETURN_IF_ERROR(check_device("enable_peer_access", peer));
  if (!forbidden_peers_.contains({device_of_thread(), peer})) return {};
  return driver_error("fake cuda: enable_peer_access: {} cannot reach {}", device_of_thread(),
                      peer);
}

}  // namespace braid::sys
