// Flags between GPUs, copy engines and the host: 64-bit counters that only grow. A waiter passes
// when the counter has reached what it expects, so a flag is never reset and a late reader cannot
// miss a value.
//
// Scopes. A flag that another GPU, a copy engine or the host writes or reads is of the *system*.
// Between blocks of one GPU flags are of it, too, where it does not matter; only meet_in() is of the
// GPU.
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
__device__ __forceinline__ void store_relaxed(uint64_t* flag, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}
/// With a store_relaxed() behind it what store_release() is; what is looked at in front of it is waited
/// for at the same time.
__device__ __forceinline__ void before_flags() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
__device__ __forceinline__ void store_release(uint64_t* flag, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

/// Of a counter that a stream waits for: what was written before is visible to the copies behind.
__device__ __forceinline__ void add_release(uint32_t* counter, uint32_t value) {
  asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

/// Of a counter by which blocks of one GPU, and nobody else, say that they have come so far. Returns
/// what it was. Who adds last has before it all that was before the others' additions, their stores
/// to other GPUs included: order is handed on whatever the scopes of its links, as long as each link
/// is between threads of its scope (PTX, causality order). So a store_release() of its own, of the
/// system, tells a peer of all blocks' stores.
__device__ __forceinline__ uint64_t meet_in(uint64_t* counter, uint64_t value) {
  uint64_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(counter), "l"(value)
               : "memory");
  return before;
}

/// Nanoseconds of the GPU's own clock, for deadlines.
__device__ __forceinline__ int64_t clock_ns() {
  int64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

}  // namespace braid::device
