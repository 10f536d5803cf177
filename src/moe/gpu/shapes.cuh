// What a kernel adds to its call's shape: the phase of the dispatch that it is of, which only the GPU
// knows.
#pragma once

#include "moe/gpu/phase.cuh"

namespace braid::moe::gpu {

/// `of`: that dispatch's ticket, or null where there is none.
__device__ __forceinline__ CallShape shape_behind(const CallShape& shape, const Ticket* of) {
  CallShape made = shape;
  if (of != nullptr) made.of_phase = static_cast<uint32_t>(of->phase);
  return made;
}

}  // namespace braid::moe::gpu
