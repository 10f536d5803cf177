// Who owns what in all_reduce, for host and device alike: the buffer is cut into one block per
// rank, the first count % n blocks one element longer. The cut depends on the count alone, never on
// shares or links, so every element has one owner, who adds it in rank order.
#pragma once

#include <cstdint>

namespace braid::coll::all_reduce_steps {

constexpr uint64_t block_begin(int rank, int num_ranks, uint64_t count) {
  const auto r = static_cast<uint64_t>(rank);
  const auto n = static_cast<uint64_t>(num_ranks);
  const uint64_t longer = count % n;
  return r * (count / n) + (r < longer ? r : longer);
}

constexpr uint64_t block_count(int rank, int num_ranks, uint64_t count) {
  return block_begin(rank + 1, num_ranks, count) - block_begin(rank, num_ranks, count);
}

static_assert(block_begin(0, 3, 10) == 0 && block_begin(1, 3, 10) == 4 &&
              block_begin(2, 3, 10) == 7);
static_assert(block_begin(3, 3, 10) == 10 && block_count(0, 3, 10) == 4 &&
              block_count(2, 3, 2) == 0);

}  // namespace braid::coll::all_reduce_steps
