// What a race's calls read from and write to: two buffers, of memory that nobody registered, or of one
// symmetric window that NCCL and braid know. A window is made as programs make one, of the library's own
// memory, and of nothing that is the program's.
//
// Windows are collective. So every rank has its memory before any comes to one, and what one of them
// cannot do none does: then there is no memory to race in, and NCCL has the calls.
//
// Threads: one.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/status.h"
#include "bindings/nccl/core.h"
#include "bindings/nccl/core/race.h"
#include "bindings/nccl/core/real_calls.h"
#include "comm/device/device.h"
#include "group/group.h"
#include "sys/cuda/owned.h"

namespace braid::nccl {

class RaceMemory {
 public:
  RaceMemory(comm::Device& device, RealCalls& real_calls, const braid_nccl_real& real,
             bool in_windows)
      : device_(device), real_calls_(real_calls), real_(real), in_windows_(in_windows) {}
  /// Without a word to the other ranks; a window that is open stays NCCL's.
  ~RaceMemory();
  RaceMemory(const RaceMemory&) = delete;
  RaceMemory& operator=(const RaceMemory&) = delete;

  /// Of this rank alone: buffers of zeros, of the largest of these sizes for which there is memory; the
  /// end of the range is what they are good for. exhausted: of none.
  Status take(SizeRange& sizes, sys::Stream stream);
  /// Collective, where calls are in windows, and nothing elsewhere: makes the first `bytes` of both
  /// buffers one window, of which all ranks have as much. False, on all ranks: not all of them can. An
  /// error is the end of all, and something may be left of it.
  Result<bool> open(group::Group& group, uint64_t bytes, Deadline deadline);
  /// Collective, behind all that used it on any rank: gives everything back.
  Status close();
  /// Whoever uses it may wake up: it is never given back.
  void leave();

  sys::DevicePtr send() const { return in_windows_ ? whole() + buffer_bytes_ : send_.get(); }
  sys::DevicePtr recv() const { return in_windows_ ? whole() : recv_.get(); }

 private:
  Status take_buffers(uint64_t bytes);
  sys::DevicePtr whole() const { return sys::address_of(whole_); }
  void give_back_whole();

  comm::Device& device_;
  RealCalls& real_calls_;
  const braid_nccl_real real_;
  const bool in_windows_;
  sys::DeviceMemory send_, recv_;  // outside of windows
  void* whole_ = nullptr;          // in them: the library's memory, both buffers
  uint64_t buffer_bytes_ = 0;
  void* window_ = nullptr;
  bool is_registered_ = false;
};

}  // namespace braid::nccl
