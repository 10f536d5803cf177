// Messages of middle size by plain stores into the peers' memory: what the kernels are told, how
// their memory is laid out and how many blocks to launch. The protocol, and why it is right, is
// told in direct.cuh.
//
// Entries, all with DirectArgs: braid_direct_all_gather, braid_direct_all_to_all,
// braid_direct_broadcast, and per dtype and op direct_reduce_kernel_name() (reduce_names.h), which
// is all-reduce and reduce-scatter. The calls are those that packets know (packets/packets.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "coll/packets/packets.h"
#include "transport/nvlink/team.h"

namespace braid::coll {

/// Of a block, always; and at most so many blocks: the other multiprocessors are the user's.
inline constexpr uint32_t kDirectThreads = 512;
inline constexpr uint32_t kMostDirectBlocks = 80;
inline constexpr uint32_t kMostPassingBlocks = 96;  // of a broadcast's rank that is not the root

/// Bulk copies (bulk.cuh): 8 blocks of them fill NVLink. Larger chunks, or more movers that begin
/// one at a time, hold up those who wait for the first.
inline constexpr uint32_t kBulkMovers = 8;  // of a block
inline constexpr uint32_t kBulkTileBytes = 8 << 10;
inline constexpr uint32_t kBulkTiles = 3;  // of a mover's ring
inline constexpr uint32_t kBulkAhead = 1;  // loads run ahead of the stores by so many tiles
inline constexpr uint32_t kBulkTrail = 1;  // and flags trail them
inline constexpr uint32_t kBulkTaken = 8;  // units of a mover that may be under way
static_assert(kBulkTaken > kBulkAhead + kBulkTrail + 1 && kBulkTiles > kBulkAhead + 1);
/// Of a block: its rings, their barriers and its units, on a boundary of 128 bytes.
inline constexpr uint32_t kBulkSharedBytes =
    kBulkMovers * (kBulkTiles * (kBulkTileBytes + 8) + (kBulkTaken + 2) * 4) + 128;
inline constexpr uint32_t kDirectStaticBytes = 1024;  // of shared memory, at most, beside that

/// An area begins with flags [region][source][chunk]: the epoch of the last call of which that
/// chunk of that source has arrived. The last region's are a rank's own, by whom a chunk is for: it
/// was sent (all-to-all in place). Behind them lie two halves of data, used by even and by odd
/// epochs; a half is slots [region][source].
inline constexpr uint64_t kMostDirectChunks = 2048;
inline constexpr uint64_t kDirectRegions = 3;
inline constexpr int kSentRegion = 2;
inline constexpr uint64_t kDirectFlagBytes =
    sizeof(uint64_t) * kDirectRegions * nvlink::kMostRanks * kMostDirectChunks;

/// A rank's own record of its calls, in its own device memory; all zero before the first.
struct DirectState {
  uint64_t epoch;         // of the last call that ended
  uint32_t blocks_done;   // of the call that runs; 0 between calls
  uint32_t next_unit[2];  // that nobody has taken yet, of even and of odd epochs
};
static_assert(sizeof(DirectState) == 24);

/// How a call is cut. Slots and chunks depend on op, bytes and ranks alone: all ranks cut alike.
struct DirectShape {
  PacketPath path;
  uint32_t push_blocks;     // send operands or blocks
  uint32_t turn_blocks;     // sum, or pass on, what has arrived
  uint32_t copy_blocks;     // copy out what needs no sum
  uint32_t copies_in_bulk;  // 1: those blocks copy in bulk where this rank pushes so
  uint64_t slot_bytes;      // from one rank to another, in one region; whole lines of 128 bytes
  uint64_t chunk_bytes;     // of a slot, the last one shorter; whole lines
  uint64_t num_chunks;      // of a slot; 1 at least, so that every peer hears of every call

  uint32_t num_blocks() const { return push_blocks + turn_blocks + copy_blocks; }
};

/// Where chunks go.
struct DirectArea {
  std::byte* area[nvlink::kMostRanks];  // of every rank, as this GPU addresses it; 256-byte aligned
  DirectState* state;                   // of this rank
  uint64_t half_bytes;                  // direct_half_bytes(); the same on all ranks
};

/// As PacketArgs: bytes, arrays, in place and the order of calls mean what they mean there, but
/// that arrays of blocks have one every stride_bytes: a call may move a part of each.
struct DirectArgs {
  nvlink::Team team;
  DirectArea direct;
  const void* send;
  void* recv;
  uint64_t bytes;
  uint64_t stride_bytes;
  int32_t root;
  uint32_t uses_bulk;  // 1: what leaves goes by bulk copies; only where the launch has their memory
  uint32_t is_in_place;  // 1: of an all-to-all; what leaves lies where what arrives shall be
  DirectShape shape;
};

/// For 2 ranks or more. `in_bulk`, whether pushes go by bulk copies, says how many blocks; nothing
/// else depends on it, and ranks may differ.
DirectShape direct_shape(plan::Op op, uint64_t bytes, int num_ranks, bool in_bulk) noexcept;
/// With so many blocks in all, but one of each kind of work: where ranks' blocks, which wait for
/// each other, must find places on one GPU.
DirectShape with_fewer_blocks(DirectShape shape, uint32_t most_blocks) noexcept;
/// Without the blocks that a root, or another rank, has no work for: of a broadcast.
DirectShape for_root(DirectShape shape, bool is_root) noexcept;

/// The largest message (the larger buffer, as all ranks' blocks) of `op` for which this is faster
/// than copy engines, where an all-gather's is `limit_bytes`.
uint64_t direct_most_bytes(plan::Op op, uint64_t limit_bytes, int num_ranks) noexcept;

/// How many calls in a row, each of a part of every block, take a message into memory that is not
/// registered faster than copy engines, which land it in scratch first; 0: none do. For messages
/// beyond direct_most_bytes(); `area_bytes` has room for each of the calls.
uint64_t direct_pieces(plan::Op op, uint64_t bytes, uint64_t area_bytes, int num_ranks) noexcept;
/// The bytes of each of `num_pieces` such parts; the last one may be shorter.
uint64_t direct_piece_bytes(uint64_t bytes, uint64_t num_pieces) noexcept;

/// What a call needs of a rank's area; and an area for every call up to direct_most_bytes().
uint64_t direct_call_bytes(plan::Op op, uint64_t bytes, int num_ranks) noexcept;
uint64_t direct_area_bytes(uint64_t limit_bytes, int num_ranks) noexcept;

/// One half of the data of an area.
uint64_t direct_half_bytes(uint64_t area_bytes) noexcept;

}  // namespace braid::coll
