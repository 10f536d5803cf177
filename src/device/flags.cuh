// Flags between GPUs, copy engines and the host: 64-bit counters that only grow. A waiter passes
// when the counter has reached what it expects, so a flag is never reset and a late reader cannot
// miss a value.
//
// Scopes. A flag that another GPU, a copy engine or the host writes or reads is of the *system*;
// one between blocks of one GPU would do with scope gpu and is not worth a second set of names.
// Who tells writes its data first, then the flag with store_release(): a thread that tells of what
// others of its block wrote meets them at a barrier before. Who waits looks with load_relaxed(),
// which costs a look and nothing else, and acquires once it has seen what it expects: an acquire
// at every look would empty the L1 each time.
#pragma once

#include <cstdint>

namespace braid::device {

__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* flag) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}
__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ __forceinline__ uint64_t load_acquire(const uint64_t* flag) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}
__device__ __forceinline__ void store_release(uint64_t* flag, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

/// Of a counter that a stream waits for: what was written before is visible to the copies behind.
__device__ __forceinline__ void add_release(uint32_t* counter, uint32_t value) {
  asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

/// Nanoseconds of the GPU's own clock, for deadlines.
__device__ __forceinline__ int64_t clock_ns() {
  int64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

}  // namespace braid::device
