// Team: what every kernel that talks to other GPUs is told. Plain structs, laid out alike for the
// host's compiler and the device's.
#pragma once

#include <cstdint>

namespace braid::nvlink {

/// GPUs of one node that one comm can span.
inline constexpr int kMostRanks = 16;

enum class Wait : uint32_t {
  kNone = 0,
  kBarrier = 1,
  kSlotFree = 2,
  kSlotFull = 3,
  kPacket = 4,
  kAgreement = 5,  // not a wait: a peer meant another call
  kChunk = 6,
};

/// Why a kernel gave up: one per GPU, in host memory that the GPU can write. The first block to
/// fail takes `code` from 0 to 1, fills in the rest, and stores 2, after which the host may read
/// it. Later failures change nothing.
struct Trouble {
  uint32_t code;
  Wait wait;
  int32_t rank;
  int32_t peer;
  int32_t block;
  uint32_t aborted;  // 1: the host asked all waits to end; 0: the deadline passed
  uint64_t expected;
  uint64_t seen;
};

struct Team {
  int32_t rank;
  int32_t size;
  int64_t timeout_ns;          // of one wait without progress
  Trouble* trouble;            // host memory, as the device addresses it
  const uint32_t* must_abort;  // host memory: not 0 ends every wait, on the host's word
  uint32_t* has_failed;        // device memory of this GPU: not 0 once a wait has ended in vain
};

}  // namespace braid::nvlink
