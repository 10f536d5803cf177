// The kernel of overlap: a GEMM whose tiles wait for what other ranks send, or go to them. What it
// is told; how it works is told in gemm.cuh, what it is for in docs/overlap_kernel.md.
//
//   C[M, N] = A[M, K] * W[N, K]^T + bias[N]      bf16 or fp16, sums in fp32
//
// Entries, in gather.cu, scatter.cu and exchange.cu: braid_<op>_<type>_<tile>[_kn], launched with
// any number of clusters, kThreads threads a block, shared_bytes() of dynamic shared memory. For
// scatter and exchange all blocks of all ranks must be resident at once.
#pragma once

#include <cstdint>

#include "device/fault.h"
#include "device/tensor_map.h"
#include "overlap/schedule.h"

namespace braid::overlap {

/// What a kernel does with a tile.
enum class Op : int32_t {
  kGather,    // waits for its rows of A; stores it
  kScatter,   // pushes it to the shard's owner; of the own shard, adds the others' parts and stores
  kExchange,  // pushes it to everybody; adds all parts and stores
};

inline constexpr int32_t kThreads = 384;  // a warpgroup that moves, two that multiply
inline constexpr int32_t kDepth = 64;     // elements of K in a stage: 128 bytes
inline constexpr int32_t kPartRows = 64;  // of a tile, by one warpgroup: a half
inline constexpr int32_t kChunkColumns = 64;
inline constexpr int32_t kChunkBytes = kPartRows * kChunkColumns * 2;
/// Chunks of output that a warpgroup has in shared memory.
inline constexpr int32_t kChunks = 2;

constexpr int32_t num_stages(const Shape& shape) { return shape.tile_n == 256 ? 4 : 6; }
constexpr int32_t stage_bytes(const Shape& shape) {
  return (shape.tile_m + shape.tile_n) * kDepth * 2;
}
constexpr int32_t shared_bytes(const Shape& shape) {
  return 1024 + num_stages(shape) * stage_bytes(shape) + 2 * kChunks * kChunkBytes + 256;
}

/// Bytes of one rank's parts of one shard: a half tile after the other, each as its threads hold it.
constexpr int64_t staged_bytes(const Schedule& schedule) {
  return int64_t{schedule.tiles_per_shard()} * schedule.shape.tile_m * schedule.shape.tile_n * 2;
}

/// Blocks that can put sums of a segment away at once: more than a GPU has.
inline constexpr int32_t kMostBlocks = 160;
/// Of one half of a tile, unrounded.
constexpr int64_t sum_bytes(const Shape& shape) { return int64_t{kPartRows} * shape.tile_n * 4; }
constexpr int64_t sums_bytes(const Shape& shape) { return 2 * kMostBlocks * sum_bytes(shape); }
inline constexpr int64_t kSumFlagsBytes = 2 * kMostBlocks * 8;

struct GemmArgs {
  device::TensorMap a;  // [shards][rows][K]
  device::TensorMap w;  // [1][N][K], or [1][K][N]
  device::TensorMap
      c[kMostRanks];  // [shards][rows][N]: the own one first, where else it goes after
  int32_t num_c;
  int32_t num_k;       // stages of kDepth, the last one perhaps in part
  int32_t c_is_shard;  // 1: c is the own shard alone
  Schedule schedule;
  Split split;
  int32_t shard_rows;
  int32_t columns;
  const void* bias;  // [N], or null
  device::Watch watch;
  const uint64_t* epoch;  // the call's number, from 1; device memory, so that graphs count on

  // Of segments that are not the last of their unit: by cluster, block of it and half (sum_bytes),
  // and whether they are there: the epoch.
  char* sums;
  uint64_t* summed;

  // Gather: arrived[shard * pieces.per_shard + piece] is the epoch for which it has arrived. Null:
  // all is here.
  Pieces pieces;
  const uint64_t* arrived;

  // Scatter and exchange: parts of all ranks, one after the other, num_slots times: 2, or 1 where
  // calls begin behind a barrier of all ranks.
  // parts_at[r] and told_at[r] are rank r's memory as this GPU addresses it.
  int32_t num_ranks;
  int32_t rank;
  uint32_t num_slots;
  int64_t part_bytes;  // of one rank's parts, staged_bytes()
  char* outbox;        // scatter: parts for all ranks, on this GPU, for this call
  uint32_t* finished;  // scatter: halves in the outbox are counted here, by shard and batch, for
                       // who pushes them and tells; null: the kernel's pushers do
  BatchShape batches;
  char* parts_at[kMostRanks];
  uint64_t* told_at[kMostRanks];  // [rank that pushed][tile of the shard][half]
};

}  // namespace braid::overlap
