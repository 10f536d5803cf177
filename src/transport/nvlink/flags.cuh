// Words by which devices tell each other how far they are. The protocol is told in copy.cu.
#pragma once

#include <cstdint>

namespace braid::transport::nvlink {

inline __device__ uint64_t global_timer_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// Releases to ld_acquire() below, on this or another device, and to std::atomic's on the host.
inline __device__ void st_release(uint64_t address, uint64_t value, uint32_t flag_bytes) {
  if (flag_bytes == 8)
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
  else
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address),
                 "r"(static_cast<uint32_t>(value))
                 : "memory");
}

// Pairs with st_release().
inline __device__ uint64_t ld_acquire(uint64_t address, uint32_t flag_bytes) {
  uint64_t wide;
  uint32_t narrow;
  if (flag_bytes == 8) {
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(wide) : "l"(address) : "memory");
    return wide;
  }
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(narrow) : "l"(address) : "memory");
  return narrow;
}

inline __device__ bool is_at_least(uint64_t seen, uint64_t expected, uint32_t flag_bytes) {
  if (flag_bytes == 8) return static_cast<int64_t>(seen - expected) >= 0;
  return static_cast<int32_t>(static_cast<uint32_t>(seen) - static_cast<uint32_t>(expected)) >= 0;
}

inline __device__ uint64_t read_epoch(uint64_t address, uint64_t offset) {
  return *reinterpret_cast<const uint64_t*>(address) + offset;
}

}  // namespace braid::transport::nvlink
