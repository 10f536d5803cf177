// The number of a call, in device memory, so that a replayed graph goes on counting.
//
// Entry: braid_count(CountArgs), one block of kCountThreads.
#pragma once

#include <cstdint>

namespace braid::overlap {

inline constexpr uint32_t kCountThreads = 256;

struct CountArgs {
  uint64_t* epoch;
  uint64_t* copies;  // the new epoch, num_copies times
  uint32_t num_copies;
};

}  // namespace braid::overlap
