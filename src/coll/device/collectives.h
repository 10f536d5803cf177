// The collectives on device memory. Contracts are those of the host calls (coll/<op>/<op>.h):
// same shapes, same numbers, same bits. What differs:
//
// Checks   the caller's, of lengths and of buffers that overlap (coll/arguments.h); it knows what
//          they are, and a call that is taken over from NCCL must not be refused on one rank.
//          Counts of all_to_all_v and roots are checked.
// Returns  ok = enqueued on `stream`, nothing more: the result is there when the stream is. A
//          failure that shows later (a lost peer, a deadline, ranks that called different things)
//          comes back from the next call and from Device::status().
// Buffers  any alignment. In memory that was registered, at the same offset on all ranks, results
//          are written in place by the peers; elsewhere they go through scratch. Kernels end
//          without a word to peers when a wait failed; copy engines, which nothing can stop, do
//          what was enqueued: after a failure on any rank registered memory holds anything.
// Graphs   may be captured; a replay counts its own epochs. A graph keeps the share of the PCIe
//          link that held when it was captured: all ranks capture a call at the same place among
//          their eager ones.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/status.h"
#include "coll/bit_op.h"
#include "comm/device/device.h"

namespace braid::coll::device {

Status all_gather(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv, uint64_t count,
                  Dtype dtype, sys::Stream stream);
Status all_reduce(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv, uint64_t count,
                  Dtype dtype, RedOp op, sys::Stream stream);
Status reduce_scatter(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv,
                      uint64_t count, Dtype dtype, RedOp op, sys::Stream stream);
/// `bit_op`, what the blocks are reduced by afterwards, is compared where the rest is, and not used.
Status all_to_all(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv, uint64_t count,
                  Dtype dtype, sys::Stream stream, BitOp bit_op = BitOp::kNone);
/// The same with counts per peer, which the host knows now: block j of `send` has send_counts[j]
/// elements, block i of `recv` recv_counts[i], one after the other without gaps. send_counts[j]
/// here must equal recv_counts[rank] on rank j: a disagreement is trouble on every rank. Results go
/// through scratch, for no rank knows where another one's blocks begin.
Status all_to_all_v(comm::Device& device, sys::DevicePtr send,
                    std::span<const uint64_t> send_counts, sys::DevicePtr recv,
                    std::span<const uint64_t> recv_counts, Dtype dtype, sys::Stream stream);
/// One block for every rank, or from it, wherever they lie.
struct Blocks {
  std::array<sys::DevicePtr, nvlink::kMostRanks> at{};
  std::array<uint64_t, nvlink::kMostRanks> bytes{};
};
/// The same from blocks and into blocks. `dtype` is compared, not used.
Status exchange_blocks(comm::Device& device, const Blocks& out, const Blocks& in, Dtype dtype,
                       sys::Stream stream);
// The following are made of those above and below: gather, scatter and all_gather_v of the uneven
// exchange, so they go through scratch, and counts that do not fit are trouble on every rank;
// rooted_reduce and reduce_scatter_v of all_reduce on pieces of at most the arena's spare_bytes(),
// whose results are dropped where nobody wants them: twice the bytes of what would be needed.
Status gather(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv, uint64_t count,
              Dtype dtype, int root, sys::Stream stream);
Status scatter(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv, uint64_t count,
               Dtype dtype, int root, sys::Stream stream);
Status all_gather_v(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv,
                    std::span<const uint64_t> counts, Dtype dtype, sys::Stream stream);
Status rooted_reduce(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv, uint64_t count,
                     Dtype dtype, RedOp op, int root, sys::Stream stream);
Status reduce_scatter_v(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv,
                        std::span<const uint64_t> counts, Dtype dtype, RedOp op,
                        sys::Stream stream);
/// Into `recv` on every rank; `send` is read on the root alone, and may be its `recv`.
Status broadcast(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv, uint64_t count,
                 Dtype dtype, int root, sys::Stream stream);
Status barrier(comm::Device& device, sys::Stream stream);

}  // namespace braid::coll::device
