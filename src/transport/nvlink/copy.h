// The kernels of copy.cu as the host sees them: names, launch shapes, arguments. Compiled by g++
// and by nvcc, so the structures have fixed-width fields and no padding that is not named.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace braid::kernels {
/// The compiled kernels; empty in a build without nvcc. sys::Cuda::load_module() takes it.
std::span<const std::byte> copy_fatbin();
}  // namespace braid::kernels

namespace braid::transport::nvlink {

inline constexpr int kMaxFlags = 64;  // one per rank: transport::kMaxRanks

/// More threads would leave the copy fewer registers than it has words on their way.
inline constexpr int kCopyMaxThreads = 512;

/// braid_copy16(CopyArgs): any number of blocks of up to kCopyMaxThreads threads.
struct CopyArgs {
  // Pointers, not integers: only of those does the compiler know that they are global memory.
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  uint64_t bytes = 0;
};

/// braid_advance(EpochArgs): one thread.
struct EpochArgs {
  uint64_t epoch = 0;  // address of a uint64_t in this device's memory
};

/// braid_signal(SignalArgs): one block of at least num_flags threads.
struct SignalArgs {
  uint64_t epoch = 0;              // address of the counter
  uint64_t offset = 0;             // what is written is the counter plus this
  uint64_t flags[kMaxFlags] = {};  // addresses, in peers' memory or in host memory
  uint32_t num_flags = 0;
  uint32_t flag_bytes = 4;  // 4 (the low half of the value) or 8
};

/// What went wrong in a kernel, in host memory that is mapped into the device. kind is written
/// last.
struct Fault {
  enum Kind : uint32_t { kNone = 0, kTimeout = 1 };
  uint32_t kind = kNone;
  int32_t rank = -1;  // who waited
  uint32_t block = 0;
  int32_t peer = -1;  // for whom
  uint64_t expected = 0, seen = 0;
};
static_assert(sizeof(Fault) == 32);

/// braid_wait(WaitArgs): one block of at least num_flags threads.
struct WaitArgs {
  uint64_t epoch = 0;
  uint64_t offset = 0;
  uint64_t flags[kMaxFlags] = {};  // addresses, best in this device's own memory
  int32_t peers[kMaxFlags] = {};   // whose flag each is
  uint32_t num_flags = 0;
  uint32_t flag_bytes = 4;
  int32_t rank = -1;
  uint32_t reserved = 0;
  uint64_t timeout_ns = 0;  // from the kernel's start, by the device's global timer
  uint64_t fault = 0;       // address of a Fault that no other kernel uses at this time
};
static_assert(sizeof(WaitArgs) < 4096);  // what every driver takes as kernel arguments

}  // namespace braid::transport::nvlink
