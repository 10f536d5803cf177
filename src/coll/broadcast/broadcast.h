#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"
#include "comm/comm.h"

namespace braid::coll {

/// Copies root's `buf` into every rank's `buf`.
/// Shapes   buf [count], contiguous
/// Returns  ok = done, all ranks; invalid_argument | timeout | peer_lost
/// Threads  one caller per comm; same call order on all ranks
/// Cost     every other rank receives count elements; root sends count elements once over a
///          multicast link, and count elements in (size - 1) parts, which the others forward, over
///          the rest
Status broadcast(comm::Comm& comm, void* buf, uint64_t count, Dtype dtype, int root);

/// Returns when every rank has entered. Errors as the others.
Status barrier(comm::Comm& comm);

}  // namespace braid::coll
