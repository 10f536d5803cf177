// What a kernel's waits are told, and what they leave behind when they end in vain. Plain structs,
// laid out alike for the host's compiler and the device's.
#pragma once

#include <cstdint>

namespace braid::device {

/// What a wait was for.
enum class Wait : uint32_t {
  kNone = 0,
  kBarrier = 1,
  kSlotFree = 2,
  kSlotFull = 3,
  kPacket = 4,
  kAgreement = 5,  // not a wait: a peer meant another call
  kChunk = 6,
  kTile = 7,
  kArgument = 8,  // not a wait: a value in device memory that may not be
};

/// Why a kernel gave up: one page per GPU, in host memory that the GPU can write. The first thread
/// to fail takes `code` from 0 to 1, fills in the rest, and stores 2, after which the host may read
/// it. Later failures change nothing.
struct Fault {
  uint32_t code;
  Wait wait;
  int32_t rank;      // whose wait it was
  int32_t peer;      // for whom
  int32_t block;     // blockIdx.x
  uint32_t aborted;  // 1: the host asked all waits to end; 0: the deadline passed
  uint64_t expected;
  uint64_t seen;
  int32_t tile;  // of Wait::kTile: the kernel's own number of what it was about to compute,
  int32_t flag;  // and which of its flags
};

/// What bounds every wait of a kernel.
struct Watch {
  int32_t rank;
  int64_t timeout_ns;          // of one wait
  Fault* fault;                // host memory, as the device addresses it
  const uint32_t* must_abort;  // host memory: not 0 ends every wait, on the host's word
  uint32_t* has_failed;        // device memory: not 0 once a wait has ended in vain
};

}  // namespace braid::device
