// Moves: one collective, said in terms that are the same for all of them. A rank sends parts (block
// p to rank p only), or its own block to everyone, or both; it receives data at places and operands
// for one reduced block, which may go to others when it is reduced.
//
//                   parts           mine             places            reduced           goes to
//   all_gather      -               send             block r of recv   -
//   all_to_all      block p         -                block r of recv   -
//   reduce_scatter  block p, summed -                -                 recv              -
//   all_reduce      block p, summed -                block r of recv   block me of recv  everyone
//   broadcast       -               buf (root only)  buf (the others)  -
//   reduce          block p, summed -                block r (root)    block me          root
//   gather          send, to root   -                block r (root)    -
//   scatter         block p (root)  -                recv, from root   -
//
// Uneven forms differ in the lengths of blocks alone. Over several nodes operands and blocks for
// everyone take the ways of coll/nodes/schedule.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "coll/wire.h"
#include "transport/lane.h"

namespace braid::coll {

struct ConstBlock {
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
};

struct Block {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
};

struct Moves {
  Signature signature;
  std::vector<uint64_t> send_counts;  // uneven forms only: as coll::Entry has them
  std::vector<uint64_t> recv_counts;
  uint64_t bytes = 0;  // the request's size, as plan::Request counts it

  std::vector<ConstBlock> parts;  // one per rank, or empty
  bool parts_are_operands = false;
  ConstBlock mine;                 // for everyone, at once
  transport::PeerSet reduced_for;  // who gets `reduced`, cell by cell as it is ready

  std::vector<Block> places;  // one per source rank, or empty; those of no bytes have no source
  Block reduced;

  bool is_wide = false;  // what moves is fp32, which the signature's type was widened to
  Dtype element() const { return is_wide ? Dtype::kFloat32 : signature.dtype; }
};

/// The cell grid of a block.
constexpr uint64_t num_cells(uint64_t block_bytes, uint32_t cell_bytes) {
  return (block_bytes + cell_bytes - 1) / cell_bytes;
}
constexpr uint64_t cell_begin(uint64_t cell, uint32_t cell_bytes) { return cell * cell_bytes; }
constexpr uint64_t cell_length(uint64_t cell, uint64_t block_bytes, uint32_t cell_bytes) {
  const uint64_t begin = cell_begin(cell, cell_bytes);
  return block_bytes - begin < cell_bytes ? block_bytes - begin : cell_bytes;
}

}  // namespace braid::coll
