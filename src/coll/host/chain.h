// Who sends what in broadcast over a unicast link, for host and device alike.
//
// Long messages go down a chain, root, root + 1, ... , root - 1: every rank sends and receives each
// cell once, so that all links of the chain are full at the same time. Sending parts to everyone
// who then pass them on moves the same bytes in two hops, but every receiver then has several
// sources at exactly its own rate; paced at 400 MB/s, 64 MiB took 221 ms on 4 ranks that way, where
// a chain needs 168 and its n - 2 extra cells. Short messages go straight from root to everyone: n
// - 1 puts instead of n - 1 hops.
#pragma once

#include <cstdint>

namespace braid::coll::broadcast_steps {

constexpr int kEnd = -1;

/// The rank after `rank` in the chain from `root`; kEnd after the last.
constexpr int next_in_chain(int rank, int root, int num_ranks) {
  const int next = (rank + 1) % num_ranks;
  return next == root ? kEnd : next;
}

/// A chain pays when it is longer to fill the pipeline than to send all copies: about as many cells
/// as ranks.
constexpr bool is_chained(uint64_t num_cells, int num_ranks) {
  return num_ranks > 2 && num_cells > 2 * static_cast<uint64_t>(num_ranks);
}

static_assert(next_in_chain(3, 3, 4) == 0 && next_in_chain(1, 3, 4) == 2 &&
              next_in_chain(2, 3, 4) == kEnd);
static_assert(!is_chained(100, 2) && is_chained(100, 4) && !is_chained(8, 4));

}  // namespace braid::coll::broadcast_steps
