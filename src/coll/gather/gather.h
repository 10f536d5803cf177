#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"
#include "comm/comm.h"

namespace braid::coll {

/// Collects every rank's `send` on root, in rank order.
/// Shapes   send [count], recv [size, count] on root (elsewhere not looked at, may be null),
///          contiguous; in place on root when send == recv + root * count elements
/// Returns  ok = done, this rank; invalid_argument | timeout | peer_lost
/// Threads  one caller per comm; same call order on all ranks
/// Cost     root receives (size - 1) * count elements, every other rank sends count
Status gather(comm::Comm& comm, const void* send, void* recv, uint64_t count, Dtype dtype,
              int root);

}  // namespace braid::coll
