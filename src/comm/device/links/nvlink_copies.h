// NvlinkCopies: what the copy engines do for calls: pushes into peers' memory over NVLink, and
// copies inside this GPU.
//
// Pushes may be held to a rate (BRAID_LINK_CAP), as a slower NVLink would have it: then no kernel
// may store into peers' memory, for its stores cannot be held.
//
// Threads: as comm::Device.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/config.h"
#include "base/status.h"
#include "comm/device/call_watch.h"
#include "comm/device/kernel_cache.h"
#include "sys/cuda/api.h"

namespace braid::comm {

class NvlinkCopies {
 public:
  NvlinkCopies(sys::Cuda& cuda, CallWatch& call_watch) : cuda_(cuda), call_watch_(call_watch) {}
  /// Of this rank alone. Errors: invalid_argument when the option is not understood.
  Status prepare(const Config& config, KernelCache& kernels);
  /// 8 bytes of this GPU's memory, zeros, that say until when NVLink is held.
  void set_clock(sys::DevicePtr held_until_ns) { held_until_ns_ = held_until_ns; }

  /// Inside this GPU.
  Status copy(sys::Stream stream, sys::DevicePtr to, sys::DevicePtr from, uint64_t bytes);
  /// Copies into peers' memory, 16 at most, in no order among each other.
  Status push(sys::Stream stream, std::span<const sys::DeviceCopy> copies);
  /// GB/s that pushes are held to; 0: as fast as they go.
  double cap_gbps() const { return cap_gbps_; }

 private:
  Status push_held(sys::Stream stream, std::span<const sys::DeviceCopy> copies);
  Status hold(sys::Stream stream, uint64_t bytes);

  sys::Cuda& cuda_;
  CallWatch& call_watch_;
  double cap_gbps_ = 0;
  sys::Kernel hold_kernel_{};
  sys::DevicePtr held_until_ns_ = 0;
};

}  // namespace braid::comm
