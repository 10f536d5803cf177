#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"
#include "comm/comm.h"

namespace braid::coll {

/// Reduces every rank's `send` element by element; every rank gets the same bits in `recv`.
/// Shapes   send [count], recv [count], contiguous; in place when send == recv; no other overlap
/// Numbers  rank order 0..size-1, accumulated in fp32 (fp64 for fp64, own type for integers),
///          rounded once; over several nodes so in each, then so with what they gave, in their
///          order (docs/nodes.md); independent of shares, links, cells and call number
/// Returns  ok = done, all ranks; invalid_argument | timeout | peer_lost
/// Threads  one caller per comm; same call order on all ranks
/// Cost     receives 2 * (size - 1) / size * count elements per rank
Status all_reduce(comm::Comm& comm, const void* send, void* recv, uint64_t count, Dtype dtype,
                  RedOp op);

}  // namespace braid::coll
