// Owners of CUDA's objects: what was made is given back once, to the Cuda that it came from.
//
// Owners end in a thread that has a current context, and before their Cuda. What the driver says to
// the giving back is dropped: after a failed kernel it refuses everything.
#pragma once

#include <optional>
#include <span>
#include <utility>

#include "sys/cuda/api.h"

namespace braid::sys {

/// One object of type `Object`, given back by the call `GiveBack`.
template <typename Object, Status (Cuda::*GiveBack)(Object)>
class Owned {
 public:
  Owned() = default;
  Owned(Cuda& cuda, Object object) : cuda_(&cuda), object_(object) {}
  Owned(Owned&& other) noexcept
      : cuda_(std::exchange(other.cuda_, nullptr)), object_(other.object_) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      reset();
      cuda_ = std::exchange(other.cuda_, nullptr);
      object_ = other.object_;
    }
    return *this;
  }
  ~Owned() { reset(); }

  bool is_held() const { return cuda_ != nullptr; }
  Object get() const { return object_; }
  void reset() {
    if (cuda_ != nullptr) (void)(std::exchange(cuda_, nullptr)->*GiveBack)(object_);
    object_ = Object{};
  }

 private:
  Cuda* cuda_ = nullptr;
  Object object_{};
};

using DeviceMemory = Owned<DevicePtr, &Cuda::free>;
using RegisteredHost = Owned<void*, &Cuda::unregister_host>;
using OwnedAllocation = Owned<Allocation, &Cuda::release_allocation>;
using OwnedStream = Owned<Stream, &Cuda::destroy_stream>;
using OwnedEvent = Owned<Event, &Cuda::destroy_event>;
using OwnedModule = Owned<Module, &Cuda::unload_module>;

/// Takes what Cuda answered: own<DeviceMemory>(cuda, cuda.alloc(bytes)).
template <typename Owner, typename Object>
Result<Owner> own(Cuda& cuda, Result<Object> made) {
  if (!made.ok()) return made.status();
  return Owner(cuda, *made);
}

/// While it lives the calling thread may do everything, even if streams are being captured.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(Cuda& cuda) : cuda_(cuda) {
    const auto held = cuda.exchange_capture_mode(CaptureMode::kRelaxed);
    if (held.ok()) held_ = held.value();
  }
  ~RelaxedCapture() {
    if (held_) (void)cuda_.exchange_capture_mode(*held_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  Cuda& cuda_;
  std::optional<CaptureMode> held_;  // empty: nothing was changed
};

/// Addresses for an allocation, with access for some devices. The bytes stay while they are mapped,
/// so the allocation may be released at once.
class MappedMemory {
 public:
  /// `bytes` is a multiple of allocation_granularity().
  static Result<MappedMemory> map(Cuda& cuda, Allocation allocation, uint64_t bytes,
                                  std::span<const int> devices);
  MappedMemory() = default;
  MappedMemory(MappedMemory&& other) noexcept
      : cuda_(std::exchange(other.cuda_, nullptr)),
        base_(other.base_),
        bytes_(other.bytes_),
        is_mapped_(other.is_mapped_) {}
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory() { reset(); }

  DevicePtr get() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  void reset();

 private:
  Cuda* cuda_ = nullptr;
  DevicePtr base_ = 0;
  uint64_t bytes_ = 0;
  bool is_mapped_ = false;
};

/// Makes a device's primary context current for this scope and puts back what was there: a library
/// must not change its caller's device.
class CurrentDevice {
 public:
  static Result<CurrentDevice> use(Cuda& cuda, int device);
  CurrentDevice(CurrentDevice&& other) noexcept
      : cuda_(std::exchange(other.cuda_, nullptr)), before_(other.before_) {}
  CurrentDevice& operator=(CurrentDevice&&) = delete;
  ~CurrentDevice() {
    if (cuda_ != nullptr) (void)cuda_->set_current_context(before_);
  }

 private:
  CurrentDevice(Cuda& cuda, Context before) : cuda_(&cuda), before_(before) {}
  Cuda* cuda_;
  Context before_;
};

}  // namespace braid::sys
