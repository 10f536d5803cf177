// Rounds: every rank sends a block to every other over NVLink, by copy engines (copy_engine_puts.h).
//
// Where peers' results may be written in place (registered memory) there is one round. Elsewhere
// blocks land in the receiver's scratch, a piece a round:
//
//   caller's stream   barrier
//   push stream       push 0   push 1        push 2         ...
//   side stream       (0 out)  barrier 0, finish 0   (1 out) barrier 1, finish 1   ...
//
// The copy engines never wait for a finish() while there is scratch left: it is a ring of slots.
// Barrier k on the side stream says that everyone's pushes of round k have landed, and that
// everyone has finished round k - 1; so a push that uses a slot again waits for the barrier one
// round after the slot's last use. finish() takes a landed piece out of the scratch: copies it to
// where it belongs, or sums it. The last pieces get smaller and smaller, because the last finish()
// has no push to hide behind.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "base/status.h"
#include "comm/device/device.h"

namespace braid::coll::device {

using Addresses = std::array<sys::DevicePtr, nvlink::kMostRanks>;

struct Exchange {
  Addresses out{};     // [peer]: the block for it
  uint64_t bytes = 0;  // of every block, alike on all ranks, as far as it goes over NVLink
  comm::SymmetricAddress
      landing;               // registered: where every peer's result begins; else scratch is used
  uint64_t place_bytes = 0;  // registered: our block's place in every peer's result
  uint64_t reserved_bytes = 0;  // at the end of the scratch, that the rounds leave alone
  uint64_t signature = 0;
};

/// A piece that has landed: bytes [begin, begin + length) of every peer's block, from rank r at
/// scratch[r].
struct Piece {
  uint64_t begin;
  uint64_t length;
  bool is_last;
  Addresses scratch;
};

/// A finish() for blocks that belong in `recv` one after the other: copies every peer's piece
/// there.
Status take_out(comm::Device& device, sys::Stream side, const Piece& piece, sys::DevicePtr recv,
                uint64_t block_bytes);

/// Enqueues the exchange between `stream`'s past and its future. `started` is called once, after
/// the first barrier, when every rank's buffers are known to be ready; `finish` per landed piece
/// with the stream to use, never when the landing is registered.
Status run_rounds(comm::Device& device, sys::Stream stream, const Exchange& exchange,
                  const std::function<Status()>& started,
                  const std::function<Status(sys::Stream, const Piece&)>& finish);

/// How many bytes of each block one round moves through the scratch at most.
uint64_t piece_bytes(const comm::Device& device, uint64_t block_bytes, uint64_t scratch_bytes);

/// And how many when `left` are left: most of them once they are about one piece, until that is
/// small.
uint64_t next_piece_bytes(uint64_t left, uint64_t piece_bytes);

}  // namespace braid::coll::device
