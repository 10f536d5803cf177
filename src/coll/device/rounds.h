// Rounds: every rank sends a block to every other over NVLink, by copy engines.
//
// A stream's copies go to peers in turn, rotated by rank, so that no two ranks push to one peer at
// a time. Where peers' results may be written in place (registered memory) there is one round.
// Elsewhere blocks land in the receiver's scratch, a piece a round, in two halves by turns:
//
//   caller's stream   barrier 0   push 0   barrier 1   push 1   barrier 2   push 2 ...   barrier K
//   side stream                                finish 0             finish 1                finish
//   K-1
//
// Barrier k says: everyone's pushes of round k-1 have landed, and everyone has finished round k-2,
// whose half of the scratch the pushes of round k are going to fill. finish() takes a landed piece
// out of the scratch: copies it to where it belongs, or sums it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "base/status.h"
#include "comm/device/device.h"

namespace braid::coll::device {

using Addresses = std::array<sys::DevicePtr, nvlink::kMostRanks>;

struct Exchange {
  Addresses out{};  // [peer]: the block for it
  std::array<uint64_t, nvlink::kMostRanks>
      bytes{};               // [peer]: how much of the block goes over NVLink
  uint64_t most_bytes = 0;   // the largest block of any rank: all ranks count rounds alike
  comm::Landing landing;     // registered: where every peer's result begins; else scratch is used
  uint64_t place_bytes = 0;  // registered: our block's place in every peer's result
  uint64_t signature = 0;
};

/// A piece that has landed: bytes [begin, begin + length) of every peer's block, from rank r at
/// scratch[r].
struct Piece {
  uint64_t begin;
  uint64_t length;
  Addresses scratch;
};

/// Enqueues the exchange between `stream`'s past and its future. `started` is called once, after
/// the first barrier, when every rank's buffers are known to be ready; `finish` per landed piece
/// with the stream to use, never when the landing is registered.
Status run_rounds(comm::Device& device, sys::Stream stream, const Exchange& exchange,
                  const std::function<Status()>& started,
                  const std::function<Status(sys::Stream, const Piece&)>& finish);

/// How many bytes of each block one round moves through the scratch.
uint64_t piece_bytes(const comm::Device& device);

}  // namespace braid::coll::device
