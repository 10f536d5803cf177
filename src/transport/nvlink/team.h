// Team: what every kernel that talks to other GPUs is told. Plain structs, laid out alike for the
// host's compiler and the device's.
#pragma once

#include <cstdint>

#include "device/fault.h"

namespace braid::nvlink {

/// GPUs of one node that one comm can span.
inline constexpr int kMostRanks = 16;

using device::Wait;

struct Team {
  int32_t rank;
  int32_t size;
  int64_t timeout_ns;          // of one wait without progress
  device::Fault* fault;        // host memory, as the device addresses it
  const uint32_t* must_abort;  // host memory: not 0 ends every wait, on the host's word
  uint32_t* has_failed;        // device memory of this GPU: not 0 once a wait has ended in vain
};

}  // namespace braid::nvlink
