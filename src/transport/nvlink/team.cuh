// Waiting on the device. Flags are 64-bit counters that only grow; a waiter passes when the counter
// has reached what it expects, so a flag is never reset and a late reader cannot miss a value.
//
// Who writes what: every counter has exactly one writer at a time. The writer's data comes first
// (st.*), then the counter with release order at system scope; the reader loads the counter with
// acquire order at system scope, then the data. A block's other threads are ordered by the barrier
// before the release and after the acquire. (One flag goes without: pcie/host_ring.h, "free".)
//
// Why it cannot hang: every wait looks at the host's word and at the clock, and ends with a note in
// Fault. A kernel whose wait ended skips its work, and so does every later one (has_failed()):
// the host finds the note and fails the comm.
#pragma once

#include "transport/nvlink/team.h"

namespace braid::nvlink {

__device__ __forceinline__ uint64_t load_acquire(const uint64_t* flag) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

__device__ __forceinline__ void store_release(uint64_t* flag, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

__device__ __forceinline__ void store_relaxed(uint64_t* flag, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

__device__ __forceinline__ uint32_t load_host_word(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ int64_t device_ns() {
  int64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

/// True once a kernel of this comm gave up on this GPU: nothing that follows can be trusted. A word
/// of device memory, not the host's, which takes a microsecond to read.
__device__ __forceinline__ bool has_failed(const Team& team) {
  return *const_cast<const volatile uint32_t*>(team.has_failed) != 0;
}

struct Expected {
  Wait wait;
  int32_t peer;
  uint64_t value;
};

static __device__ __noinline__ void give_up(const Team& team, const Expected& expected,
                                            uint64_t seen, bool aborted) {
  *const_cast<volatile uint32_t*>(team.has_failed) = 1;
  if (atomicCAS_system(&team.fault->code, 0U, 1U) != 0U) return;
  device::Fault& note = *team.fault;
  note.wait = expected.wait;
  note.rank = team.rank;
  note.peer = expected.peer;
  note.block = static_cast<int32_t>(blockIdx.x);
  note.aborted = aborted ? 1U : 0U;
  note.expected = expected.value;
  note.seen = seen;
  __threadfence_system();
  atomicExch_system(&note.code, 2U);
}

/// Waits until `flag` has reached the expected value. False: gave up, and Fault says why.
/// Every thread may wait for a flag of its own; the clock is read every 1,024 looks only.
__device__ __forceinline__ bool wait_for(const Team& team, const uint64_t* flag,
                                         const Expected& expected) {
  uint64_t seen = load_acquire(flag);
  if (seen >= expected.value) return true;
  const int64_t start_ns = device_ns();
  for (uint32_t looks = 1;; ++looks) {
    seen = load_acquire(flag);
    if (seen >= expected.value) return true;
    if (looks % 1024 != 0) continue;
    const bool aborted = load_host_word(team.must_abort) != 0;
    if (!aborted && device_ns() - start_ns < team.timeout_ns) continue;
    give_up(team, expected, seen, aborted);
    return false;
  }
}

}  // namespace braid::nvlink
