#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/status.h"
#include "comm/comm.h"

namespace braid::coll {

/// Reduces and leaves block r of the result on rank r. Numbers as all_reduce.
/// Shapes   send [size, count], recv [count], contiguous; in place when recv == send + rank * count
///          elements
/// Returns  ok = done, all ranks; invalid_argument | timeout | peer_lost
/// Threads  one caller per comm; same call order on all ranks
/// Cost     receives (size - 1) * count elements per rank
Status reduce_scatter(comm::Comm& comm, const void* send, void* recv, uint64_t count, Dtype dtype,
                      RedOp op);

/// The same with blocks of counts[r] elements for rank r, which all ranks give alike; 0 is fine.
/// Shapes   send [sum of counts], recv [counts[rank]]; in place when recv is its block of send
Status reduce_scatter_v(comm::Comm& comm, const void* send, void* recv,
                        std::span<const uint64_t> counts, Dtype dtype, RedOp op);

}  // namespace braid::coll
