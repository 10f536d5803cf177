#include <algorithm>

#include "base/rounding.h"
#include "coll/direct/direct.h"

namespace braid::coll {

namespace {

// Chunks are small enough that all who push have some and receivers begin early: what all movers
// have begun arrives together. They are no smaller than that, since a receiver looks for every
// chunk's flag. 4 H200, 64 KiB and 32: all_reduce of 64 MiB 311 and 305 us, of 32 MiB 165 and 162.
constexpr uint64_t kMostChunkBytes = 32 << 10;
constexpr uint64_t kLeastChunkBytes = 16 << 10;
constexpr uint64_t kChunksPerPush = 64;  // of all that is pushed
// Of what is summed among three ranks or more. Whole shares of a block's warps.
constexpr uint64_t kChunksPerSum = 512;
constexpr uint64_t kChunkUnit = 16 << 10;
constexpr uint64_t kChunksPerSlice = 512;  // of a broadcast

/// Blocks of each kind of work, at most.
struct Kinds {
  uint32_t push, turn, copy;
};

// Slots beyond it last: then few blocks copy out, in bulk, which leave multiprocessors to the user.
// 4 H200, all_gather of 16 and 32 MiB a rank: 159 and 305 us by 48 blocks of threads, 165 and 308
// by 16 in bulk, 166 and 309 by 12. Among two, whose own block is half of what is copied, by 48 and
// 16: 111 and 117 us of 32 MiB a rank, 212 and 229 of 64.
constexpr uint64_t kLastingSlotBytes = 16 << 20;

bool copies_blocks_in_bulk(uint64_t slot, uint64_t ranks) {
  return ranks > 2 && slot > kLastingSlotBytes;
}

// Plain stores of 16 pushing blocks carried 196 GB/s (all-reduce of 16 MiB on two H200), so there
// may be 32. In bulk 8 carry 345, and what takes out may have the others: 4 H200, all_to_all of 64
// MiB 183 us with 32 that push and 32 that copy, 162 with 8 and 48. A broadcast's root pushes
// alone, and of the other kinds most copy out: 64 and 256 MiB on four H200 took 202 and 807 us with
// 16, 16 and 32, 225 and 862 with 16, 16 and 16, 234 and 886 with 16, 32 and 16, 209 and 810 with 8,
// 16 and 32, and 206 and 831 with 32, 64 and 32 when turns were plain stores.
Kinds most_blocks(plan::Op op, PacketPath path, uint64_t slot, uint64_t ranks, bool in_bulk) {
  switch (path) {
    case PacketPath::kCopy:
      if (!in_bulk) return {32, 0, 32};
      return {8, 0, copies_blocks_in_bulk(slot, ranks) ? 16U : 48U};
    case PacketPath::kOneShot:
    case PacketPath::kReduceScatter:
      if (!in_bulk) return {32, 32, 0};
      return ranks > 4 ? Kinds{16, 64, 0} : Kinds{8, 48, 0};
    case PacketPath::kTwoShot: break;
  }
  if (op == plan::Op::kBroadcast)
    return in_bulk && ranks > 2 ? Kinds{16, 16, 32} : Kinds{32, 32, 16};
  return in_bulk ? Kinds{8, 32, 32} : Kinds{32, 32, 16};
}

// Of slots, and so of slices: NVLink carries whole lines, and what begins between two of them costs
// a third more (a broadcast of 64 MiB on 8 H200 whose slots were multiples of 16: 304 us, of the
// root whose slot was the first 232).
constexpr uint64_t kSlotUnit = 256;
constexpr uint64_t kHalfUnit = 256;

/// Two ranks send as much in one shot as in two. With more, two shots send less.
PacketPath path_of(plan::Op op, uint64_t ranks) {
  switch (op) {
    case plan::Op::kReduceScatter: return PacketPath::kReduceScatter;
    case plan::Op::kAllReduce: return ranks == 2 ? PacketPath::kOneShot : PacketPath::kTwoShot;
    case plan::Op::kBroadcast: return PacketPath::kTwoShot;
    case plan::Op::kAllGather:
    case plan::Op::kAllToAll: break;
  }
  return PacketPath::kCopy;
}

/// Two shots cut the message into a slice per owner; a broadcast's root owns none.
uint64_t slot_bytes(plan::Op op, uint64_t bytes, uint64_t ranks) {
  if (op == plan::Op::kBroadcast) return round_up(divided_up(bytes, ranks - 1), kSlotUnit);
  if (path_of(op, ranks) == PacketPath::kTwoShot)
    return round_up(divided_up(bytes, ranks), kSlotUnit);
  return round_up(bytes, kSlotUnit);
}

/// The most bytes of a call whose slots lie in a half.
uint64_t room_bytes(plan::Op op, uint64_t half_bytes, int num_ranks) {
  const auto ranks = static_cast<uint64_t>(num_ranks);
  const bool is_two_shot = path_of(op, ranks) == PacketPath::kTwoShot;
  const uint64_t slot = half_bytes / (ranks * (is_two_shot ? 2 : 1)) / kSlotUnit * kSlotUnit;
  if (op == plan::Op::kBroadcast) return slot * (ranks - 1);
  return is_two_shot ? slot * ranks : slot;
}

// Beyond so many copy engines are faster, or as fast: they have the host link beside them. us into
// memory that is not registered, by copy engines, then by pieces (docs/decisions/0014):
//   4 H200   all_gather of 64 and 128 MiB a rank 647 and 1,161, 609 and 1,197; all_to_all of 128,
//            256 and 512 MiB 435, 696 and 1,215, 318, 636 and 1,262; all_reduce of 128 and 256
//            MiB 628 and 1,142, 609 and 1,199
//   2 H200   all_gather of 64 and 128 MiB a rank 237 and 405, 212 and 423; all_to_all of 128 MiB
//            236 and 212; all_reduce of 64 and 128 MiB 226 and 405, 213 and 426
// Of a broadcast among more there may be any number, since copy engines pass on what has landed as
// a whole: 256 MiB took them 1,009 us on 4 H200, where 64 MiB by a kernel take 204; but by kernels
// of 16 MiB, of 62 us each, it would take as long.
constexpr uint64_t kLeastPiece = 16 << 20;
uint64_t most_pieces(plan::Op op, int num_ranks, uint64_t room) {
  switch (op) {
    case plan::Op::kAllReduce:
    case plan::Op::kAllGather:
    case plan::Op::kAllToAll: return num_ranks == 2 ? 1 : 2;
    case plan::Op::kBroadcast: return num_ranks > 2 && room >= kLeastPiece ? UINT64_MAX : 0;
    case plan::Op::kReduceScatter: break;  // lands nothing that would be copied
  }
  return 0;
}

bool is_summed(plan::Op op) { return op == plan::Op::kAllReduce || op == plan::Op::kReduceScatter; }

uint64_t wanted_chunk_bytes(plan::Op op, uint64_t pushed_bytes, uint64_t ranks) {
  if (op == plan::Op::kBroadcast)
    return round_up(pushed_bytes / (ranks - 1) / kChunksPerSlice, kChunkUnit);
  if (!is_summed(op) || ranks == 2) return round_up(pushed_bytes / kChunksPerPush, kBulkTileBytes);
  return round_up(pushed_bytes / kChunksPerSum, kChunkUnit);
}

uint64_t chunk_bytes(uint64_t slot, uint64_t wanted) {
  return std::max(std::clamp(wanted, kLeastChunkBytes, kMostChunkBytes),
                  round_up(divided_up(slot, kMostDirectChunks), kSlotUnit));
}

uint32_t blocks_for(uint64_t units, uint32_t most) {
  return static_cast<uint32_t>(std::min<uint64_t>(units, most));
}

}  // namespace

DirectShape direct_shape(plan::Op op, uint64_t bytes, int num_ranks, bool in_bulk) noexcept {
  const auto ranks = static_cast<uint64_t>(num_ranks);
  DirectShape shape{};
  shape.path = path_of(op, ranks);
  shape.slot_bytes = slot_bytes(op, bytes, ranks);
  // All-gather and one shot read a chunk once for all peers.
  const bool is_for_all = op == plan::Op::kAllGather || shape.path == PacketPath::kOneShot;
  const uint64_t parts = is_for_all ? 1 : ranks - 1;
  shape.chunk_bytes =
      chunk_bytes(shape.slot_bytes, wanted_chunk_bytes(op, shape.slot_bytes * parts, ranks));
  shape.num_chunks = std::max<uint64_t>(divided_up(shape.slot_bytes, shape.chunk_bytes), 1);
  const Kinds most = most_blocks(op, shape.path, shape.slot_bytes, ranks, in_bulk);
  shape.push_blocks = blocks_for(shape.num_chunks * parts, most.push);
  shape.turn_blocks = blocks_for(shape.num_chunks, most.turn);
  shape.copy_blocks = blocks_for(shape.num_chunks * (ranks - 1), most.copy);
  shape.copies_in_bulk = in_bulk && (shape.path == PacketPath::kTwoShot ||
                                     copies_blocks_in_bulk(shape.slot_bytes, ranks));
  return shape;
}

DirectShape with_fewer_blocks(DirectShape shape, uint32_t most_blocks) noexcept {
  const uint32_t most = std::max(most_blocks / 3, 1U);  // kinds of work
  shape.push_blocks = std::min(shape.push_blocks, most);
  shape.turn_blocks = std::min(shape.turn_blocks, most);
  shape.copy_blocks = std::min(shape.copy_blocks, most);
  return shape;
}

DirectShape for_root(DirectShape shape, bool is_root) noexcept {
  if (is_root) {
    shape.turn_blocks = 0;
    shape.copy_blocks = 1;  // awaits greetings
  } else {
    shape.push_blocks = 0;
  }
  return shape;
}

uint64_t direct_call_bytes(plan::Op op, uint64_t bytes, int num_ranks) noexcept {
  const auto ranks = static_cast<uint64_t>(num_ranks);
  const uint64_t regions = path_of(op, ranks) == PacketPath::kTwoShot ? 2 : 1;
  const uint64_t half = regions * ranks * slot_bytes(op, bytes, ranks);
  return kDirectFlagBytes + 2 * round_up(half, kHalfUnit);
}

// Where copy engines take over, by op (2 and 4 H200, docs/decisions/0005): they have nothing
// to begin twice in an all-gather, and need two passes through memory for what is summed. From
// three ranks on the one-buffer operations take two steps, and their copies are short.
uint64_t direct_most_bytes(plan::Op op, uint64_t limit_bytes, int num_ranks) noexcept {
  switch (op) {
    case plan::Op::kReduceScatter: return 4 * limit_bytes;
    case plan::Op::kAllToAll: return 2 * limit_bytes;
    case plan::Op::kAllReduce:
    case plan::Op::kBroadcast: return num_ranks > 2 ? 2 * limit_bytes : limit_bytes;
    case plan::Op::kAllGather: break;
  }
  return limit_bytes;
}

uint64_t direct_pieces(plan::Op op, uint64_t bytes, uint64_t area_bytes, int num_ranks) noexcept {
  const uint64_t most = room_bytes(op, direct_half_bytes(area_bytes), num_ranks);
  if (most == 0) return 0;
  const uint64_t num_pieces = divided_up(bytes, most);
  return num_pieces <= most_pieces(op, num_ranks, most) ? num_pieces : 0;
}

uint64_t direct_piece_bytes(uint64_t bytes, uint64_t num_pieces) noexcept {
  return round_up(divided_up(bytes, num_pieces), kSlotUnit);
}

uint64_t direct_area_bytes(uint64_t limit_bytes, int num_ranks) noexcept {
  uint64_t most = 0;
  for (const plan::Op op : {plan::Op::kAllGather, plan::Op::kAllReduce, plan::Op::kReduceScatter,
                            plan::Op::kAllToAll, plan::Op::kBroadcast}) {
    const uint64_t message = direct_most_bytes(op, limit_bytes, num_ranks);
    const uint64_t bytes =
        plan::is_one_buffer(op) ? message : message / static_cast<uint64_t>(num_ranks);
    most = std::max(most, direct_call_bytes(op, bytes, num_ranks));
  }
  return most;
}

uint64_t direct_half_bytes(uint64_t area_bytes) noexcept {
  if (area_bytes < kDirectFlagBytes) return 0;
  return (area_bytes - kDirectFlagBytes) / 2 / kHalfUnit * kHalfUnit;
}

}  // namespace braid::coll
