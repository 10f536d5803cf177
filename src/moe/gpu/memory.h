// Memory: what a buffer has of its GPU, and the peers' windows.
//
//   window     window_bytes(), registered with the comm: peers store rows, flags and acks into it
//   own        counters (State), which only this GPU uses
//   incoming   pinned host memory, where a dispatch whose caller waits for sizes says what comes
#pragma once

#include <memory>

#include "comm/device/device.h"
#include "moe/gpu/args.h"
#include "sys/cuda/owned.h"
#include "sys/host/pages.h"

namespace braid::moe::gpu {

class Memory {
 public:
  /// Collective; every rank gets the same verdict: exhausted, invalid_argument (halves of different
  /// sizes), what keeps GPUs from each other's memory. In the context of the GPU.
  static Result<std::unique_ptr<Memory>> create(comm::Device& device, uint64_t half_bytes);
  /// In any context, also after the Device: peers' mappings keep what they still write to.
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// What kernels are told. The window's addresses hold as long as the registration.
  const Team& team() const { return team_; }
  int num_sms() const { return num_sms_; }
  /// incoming_words(), as the host and as the GPU address them.
  int32_t* host_incoming() const { return reinterpret_cast<int32_t*>(page_.data()); }
  int32_t* device_incoming() const { return sys::pointer_to<int32_t>(page_on_device_); }

  /// Ends the registration on this rank, without waiting; no call may follow.
  void forget(comm::Device& device);

 private:
  static constexpr uint64_t kPageBytes = 16384;
  static_assert(uint64_t{4} * incoming_words(kMostRanks, kMostExperts) <= kPageBytes);

  Memory(sys::Cuda& cuda, int ordinal) : cuda_(cuda), ordinal_(ordinal) {}
  Status allocate(comm::Device& device);
  Status reach(comm::Device& device, const Status& own);

  sys::Cuda& cuda_;
  const int ordinal_;
  int num_sms_ = 1;
  nvlink::Hold window_hold_;
  sys::DevicePtr window_ = 0;
  sys::DeviceMemory own_;
  sys::Pages page_;
  sys::RegisteredHost pinned_;
  sys::DevicePtr page_on_device_ = 0;
  Team team_{};
};

}  // namespace braid::moe::gpu
