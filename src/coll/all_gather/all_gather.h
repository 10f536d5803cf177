#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/status.h"
#include "comm/comm.h"

namespace braid::coll {

/// Gathers every rank's `send` into every rank's `recv`, in rank order.
/// Shapes   send [count], recv [size, count], contiguous; in place when send == recv + rank * count
///          elements
/// Returns  ok = done, all ranks; invalid_argument | timeout | peer_lost
/// Threads  one caller per comm; same call order on all ranks
/// Cost     receives (size - 1) * count elements per rank; a multicast link sends count elements,
///          others (size - 1) * count
Status all_gather(comm::Comm& comm, const void* send, void* recv, uint64_t count, Dtype dtype);

/// The same with blocks of counts[r] elements of rank r, which all ranks give alike; 0 is fine.
/// Shapes   send [counts[rank]], recv [sum of counts]; in place when send is its block of recv
Status all_gather_v(comm::Comm& comm, const void* send, void* recv,
                    std::span<const uint64_t> counts, Dtype dtype);

}  // namespace braid::coll
