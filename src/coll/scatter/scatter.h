#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"
#include "comm/comm.h"

namespace braid::coll {

/// Gives every rank its block of root's `send`.
/// Shapes   send [size, count] on root (elsewhere not looked at, may be null), recv [count],
///          contiguous; in place on root when recv == send + root * count elements
/// Returns  ok = done, this rank; invalid_argument | timeout | peer_lost
/// Threads  one caller per comm; same call order on all ranks
/// Cost     root sends (size - 1) * count elements, every other rank receives count
Status scatter(comm::Comm& comm, const void* send, void* recv, uint64_t count, Dtype dtype,
               int root);

}  // namespace braid::coll
