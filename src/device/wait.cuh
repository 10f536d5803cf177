// Waits that end. Each looks at the clock and at the host's word now and then; when it ends in vain
// it says in the fault page who waited for what, and marks the GPU as failed. A kernel whose wait
// ended goes on without its data and tells nobody anything more (has_failed()), so it ends soon and
// nothing it made is taken for a result: the host finds the page and fails the call.
#pragma once

#include "device/fault.h"
#include "device/flags.cuh"

namespace braid::device {

/// What a wait is for, in the fault page's words.
struct Expected {
  Wait wait;
  uint64_t value;
  int32_t peer, tile, flag;
};

__device__ __forceinline__ bool has_failed(const Watch& watch) {
  return *const_cast<const volatile uint32_t*>(watch.has_failed) != 0;
}

static __device__ __noinline__ void give_up(const Watch& watch, const Expected& expected,
                                            uint64_t seen, bool aborted) {
  *const_cast<volatile uint32_t*>(watch.has_failed) = 1;
  if (atomicCAS_system(&watch.fault->code, 0U, 1U) != 0U) return;
  Fault& note = *watch.fault;
  note.wait = expected.wait;
  note.rank = watch.rank;
  note.peer = expected.peer;
  note.block = static_cast<int32_t>(blockIdx.x);
  note.tile = expected.tile;
  note.flag = expected.flag;
  note.aborted = aborted ? 1U : 0U;
  note.expected = expected.value;
  note.seen = seen;
  __threadfence_system();
  atomicExch_system(&note.code, 2U);
}

/// The long half of wait_for(), out of the way of the callers' registers.
template <uint32_t kSleepNs = 0>
static __device__ __noinline__ bool wait_on(const Watch& watch, const uint64_t* flag,
                                            const Expected& expected) {
  const int64_t begin_ns = clock_ns();
  for (uint32_t looks = 1;; ++looks) {
    const uint64_t seen = load_relaxed(flag);
    if (seen >= expected.value) return true;
    if constexpr (kSleepNs != 0) __nanosleep(kSleepNs);
    if (looks % 256 != 0) continue;
    if (has_failed(watch)) return false;
    const bool aborted = load_relaxed(watch.must_abort) != 0;
    if (!aborted && clock_ns() - begin_ns < watch.timeout_ns) continue;
    give_up(watch, expected, seen, aborted);
    return false;
  }
}

/// As below, of a flag that was looked at before, for it to be there by now. kSleepNs: wait_gently()'s.
template <uint32_t kSleepNs = 0>
__device__ __forceinline__ bool wait_for(const Watch& watch, const uint64_t* flag,
                                         const Expected& expected, uint64_t looked) {
  if (looked < expected.value && !wait_on<kSleepNs>(watch, flag, expected)) return false;
  (void)load_acquire(flag);
  return true;
}

/// Waits until `flag` has reached expected.value; what was written before it was is visible then to
/// this thread's ordinary loads. Bulk copies need before_bulk_copies() in between, too. False: gave
/// up, and the fault page says why. Costs one load where the flag is there.
__device__ __forceinline__ bool wait_for(const Watch& watch, const uint64_t* flag,
                                         const Expected& expected) {
  return wait_for(watch, flag, expected, load_relaxed(flag));
}

/// As wait_for(), where many blocks wait for long: each sleeps between looks, so it may hear of the flag
/// some tenths of a microsecond later. Hundreds of threads that look all the time are more than the slice
/// of the L2 can answer in which the flag lies, and all else that goes through that slice waits with it,
/// peers' stores too: a dispatch of 4096 tokens among four H200, of whose 132 blocks 24 send, took 1189 us
/// so, and 572 with sleep.
__device__ __forceinline__ bool wait_gently(const Watch& watch, const uint64_t* flag,
                                            const Expected& expected, uint64_t looked) {
  return wait_for<200>(watch, flag, expected, looked);
}
__device__ __forceinline__ bool wait_gently(const Watch& watch, const uint64_t* flag,
                                            const Expected& expected) {
  return wait_gently(watch, flag, expected, load_relaxed(flag));
}

}  // namespace braid::device
