// The number of a call, in device memory, so that a replayed graph goes on counting. Counters of what
// a call has finished begin at 0 here, where nobody waits for them any more: what is set behind a
// push would stand in the way of the next.
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
  uint32_t* counters;  // set to 0
  uint32_t num_counters;
};

}  // namespace braid::overlap
