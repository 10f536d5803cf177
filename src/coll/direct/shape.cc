#include <algorithm>

#include "base/rounding.h"
#include "coll/direct/direct.h"
#include <cstdlib>
namespace { uint64_t xbs(const char* name, uint64_t otherwise) { const char* v = std::getenv(name); return v && *v ? std::strtoull(v, nullptr, 10) : otherwise; } }

namespace braid::coll {

namespace {

// 16 pushing blocks carried 196 GB/s (all-reduce of 16 MiB on two H200), so there may be 32. A
// chunk of 64 KiB is eight vectors a thread, all in flight at once; its flag costs a fence of a
// trip over NVLink, a microsecond or two. Smaller messages get smaller chunks, so that all blocks
// have some and receivers begin early.
constexpr uint64_t kMostChunkBytes = 64 << 10;
constexpr uint64_t kLeastChunkBytes = 16 << 10;
constexpr uint64_t kChunksPerBlock = 2;
// Of what is summed among three ranks or more, each lane that pushes in bulk has some: the lanes
// work side by side, and what all have begun arrives together. Whole shares of a block's warps.
constexpr uint64_t kChunksPerMover = 2;
constexpr uint64_t kSumChunkUnit = 16 << 10;

constexpr uint32_t kHalfOfBlocks = kMostDirectBlocks / 2;

// Blocks of push and turn in three stages; both fill NVLink. The last stage has what is left: 16
// copy 400 GB/s and more within a GPU's memory, where 340 arrive.
constexpr uint32_t stage_blocks(uint64_t ranks) { return ranks > 2 ? 32 : 24; }
constexpr uint32_t last_stage_blocks(uint64_t ranks) {
  return (ranks > 2 ? kMostStagedBlocks : kMostDirectBlocks) - 2 * stage_blocks(ranks);
}

constexpr uint64_t kUnit = 16;
constexpr uint64_t kHalfUnit = 256;

/// Two ranks send as much in one shot as in two. With more, two shots send less.
PacketPath path_of(PacketOp op, uint64_t ranks) {
  switch (op) {
    case PacketOp::kReduceScatter: return PacketPath::kReduceScatter;
    case PacketOp::kAllReduce: return ranks == 2 ? PacketPath::kOneShot : PacketPath::kTwoShot;
    case PacketOp::kBroadcast: return PacketPath::kTwoShot;
    case PacketOp::kAllGather:
    case PacketOp::kAllToAll: break;
  }
  return PacketPath::kCopy;
}

/// Two shots cut the message into a slice per owner; a broadcast's root owns none.
uint64_t slot_bytes(PacketOp op, uint64_t bytes, uint64_t ranks) {
  if (op == PacketOp::kBroadcast) return round_up(divided_up(bytes, ranks - 1), kUnit);
  if (path_of(op, ranks) == PacketPath::kTwoShot) return round_up(divided_up(bytes, ranks), kUnit);
  return round_up(bytes, kUnit);
}

bool is_summed(PacketOp op) { return op == PacketOp::kAllReduce || op == PacketOp::kReduceScatter; }

uint64_t wanted_chunk_bytes(PacketOp op, uint64_t pushed_bytes, uint64_t ranks) {
  if (!is_summed(op) || ranks == 2)
    return round_up(pushed_bytes / (kHalfOfBlocks * kChunksPerBlock), kUnit);
  const uint64_t movers = uint64_t{most_bulk_blocks(static_cast<int>(ranks))} * kBulkMovers;
  return round_up(pushed_bytes / (movers * xbs("XB_CPM", kChunksPerMover)), kSumChunkUnit);
}

uint64_t chunk_bytes(uint64_t slot, uint64_t wanted) {
  return std::max(std::clamp(wanted, xbs("XB_MINCH", kLeastChunkBytes >> 10) << 10, xbs("XB_MAXCH", kMostChunkBytes >> 10) << 10),
                  round_up(divided_up(slot, kMostDirectChunks), kUnit));
}

uint32_t blocks_for(uint64_t units, uint32_t most) {
  return static_cast<uint32_t>(std::min<uint64_t>(units, most));
}

}  // namespace

DirectShape direct_shape(PacketOp op, uint64_t bytes, int num_ranks) noexcept {
  const auto ranks = static_cast<uint64_t>(num_ranks);
  DirectShape shape{};
  shape.path = path_of(op, ranks);
  shape.slot_bytes = slot_bytes(op, bytes, ranks);
  // All-gather and one shot read a chunk once for all peers.
  const bool is_for_all = op == PacketOp::kAllGather || shape.path == PacketPath::kOneShot;
  const uint64_t parts = is_for_all ? 1 : ranks - 1;
  shape.chunk_bytes =
      chunk_bytes(shape.slot_bytes, wanted_chunk_bytes(op, shape.slot_bytes * parts, ranks));
  shape.num_chunks = std::max<uint64_t>(divided_up(shape.slot_bytes, shape.chunk_bytes), 1);
  const bool has_stages = shape.path == PacketPath::kTwoShot;
  const uint32_t most = has_stages ? stage_blocks(ranks) : kHalfOfBlocks;
  const uint64_t arrivals = shape.num_chunks * (ranks - 1);
  shape.push_blocks = blocks_for(shape.num_chunks * parts, most);
  if (shape.path != PacketPath::kCopy) shape.turn_blocks = blocks_for(shape.num_chunks, most);
  if (shape.path == PacketPath::kCopy) shape.copy_blocks = blocks_for(arrivals, most);
  if (has_stages) shape.copy_blocks = blocks_for(arrivals, last_stage_blocks(ranks));
  if (auto b = xbs("XB_TURN", 0); b && shape.turn_blocks) shape.turn_blocks = blocks_for(shape.num_chunks, b);
  if (auto b = xbs("XB_COPY", 0); b && shape.copy_blocks) shape.copy_blocks = blocks_for(arrivals, b);
  return shape;
}

uint64_t direct_call_bytes(PacketOp op, uint64_t bytes, int num_ranks) noexcept {
  const auto ranks = static_cast<uint64_t>(num_ranks);
  const uint64_t regions = path_of(op, ranks) == PacketPath::kTwoShot ? 2 : 1;
  const uint64_t half = regions * ranks * slot_bytes(op, bytes, ranks);
  return kDirectFlagBytes + 2 * round_up(half, kHalfUnit);
}

// Where copy engines take over, by op (2 and 4 H200, docs/decisions/0005): they have nothing
// to begin twice in an all-gather, and need two passes through memory for what is summed. From
// three ranks on the one-buffer operations take two steps, and their copies are short.
uint64_t direct_most_bytes(PacketOp op, uint64_t limit_bytes, int num_ranks) noexcept {
  switch (op) {
    case PacketOp::kReduceScatter: return 4 * limit_bytes;
    case PacketOp::kAllToAll: return 2 * limit_bytes;
    case PacketOp::kAllReduce:
    case PacketOp::kBroadcast: return num_ranks > 2 ? 2 * limit_bytes : limit_bytes;
    case PacketOp::kAllGather: break;
  }
  return limit_bytes;
}

uint64_t direct_area_bytes(uint64_t limit_bytes, int num_ranks) noexcept {
  uint64_t most = 0;
  for (const PacketOp op : {PacketOp::kAllGather, PacketOp::kAllReduce, PacketOp::kReduceScatter,
                            PacketOp::kAllToAll, PacketOp::kBroadcast}) {
    const bool is_one_buffer = op == PacketOp::kAllReduce || op == PacketOp::kBroadcast;
    const uint64_t message = direct_most_bytes(op, limit_bytes, num_ranks);
    const uint64_t bytes = is_one_buffer ? message : message / static_cast<uint64_t>(num_ranks);
    most = std::max(most, direct_call_bytes(op, bytes, num_ranks));
  }
  return most;
}

uint64_t direct_half_bytes(uint64_t area_bytes) noexcept {
  if (area_bytes < kDirectFlagBytes) return 0;
  return (area_bytes - kDirectFlagBytes) / 2 / kHalfUnit * kHalfUnit;
}

}  // namespace braid::coll
