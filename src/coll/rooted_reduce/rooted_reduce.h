#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"
#include "comm/comm.h"

namespace braid::coll {

/// Reduces `send` over all ranks into root's `recv`: what braid calls reduce elsewhere, where
/// coll::reduce() is the sum of operands that lie on one rank. Numbers as all_reduce, the same bits.
/// Shapes   send [count], recv [count] on root (elsewhere not looked at, may be null), contiguous;
///          in place on root when send == recv
/// Returns  ok = done, this rank; invalid_argument | exhausted | timeout | peer_lost
/// Threads  one caller per comm; same call order on all ranks
/// Cost     root receives 2 * (size - 1) / size * count elements, every other rank receives
///          (size - 1) / size * count, and holds count / size of them meanwhile
Status rooted_reduce(comm::Comm& comm, const void* send, void* recv, uint64_t count, Dtype dtype,
                     RedOp op, int root);

}  // namespace braid::coll
