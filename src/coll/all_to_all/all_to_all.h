#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/status.h"
#include "coll/bit_op.h"
#include "comm/comm.h"

namespace braid::coll {

/// Block j of rank i's `send` becomes block i of rank j's `recv`.
/// Shapes   send [size, count], recv [size, count], contiguous; send == recv is allowed (costs one
///          copy)
/// Returns  ok = done, all ranks; invalid_argument | timeout | peer_lost
/// Threads  one caller per comm; same call order on all ranks
/// Cost     receives (size - 1) * count elements per rank
/// `bit_op`, what the blocks are reduced by afterwards, is compared and not used.
Status all_to_all(comm::Comm& comm, const void* send, void* recv, uint64_t count, Dtype dtype,
                  BitOp bit_op = BitOp::kNone);

/// The same with counts per peer: block j of `send` has send_counts[j] elements, block i of `recv`
/// recv_counts[i]; blocks lie one after the other without gaps. send_counts[j] here must equal
/// recv_counts[rank] on rank j: a disagreement is invalid_argument on every rank.
Status all_to_all_v(comm::Comm& comm, const void* send, std::span<const uint64_t> send_counts,
                    void* recv, std::span<const uint64_t> recv_counts, Dtype dtype);

}  // namespace braid::coll
