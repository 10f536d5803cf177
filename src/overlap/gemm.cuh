// How a tile comes to be. A block has three warpgroups: one moves data, two multiply, each a half of
// 64 rows of the block's tile. They meet at mbarriers only:
//
//   loader   one thread: for every tile waits until its rows of A have arrived, then for every 64
//            elements of K fills a stage of shared memory with pieces of A and W. In a cluster of two
//            blocks the piece that both need is fetched half by each, into both.
//   halves   two warpgroups: multiply stage after stage into registers; then hand the half tile over,
//            64 columns at a time, through two chunks of shared memory.
//   senders  one thread for each half: stores chunks to C or, of an exchange, to the other ranks;
//            and does for its half what takes long: tells others of what the half has put into
//            memory, and waits for what they tell.
//   pusher   one warp: takes parts to the ranks that own their shards, and tells them; or copy
//            engines do, a batch at a time, whose streams wait for GemmArgs::finished.
//
// While a half is handed over the loader fills the stages of the next tile.
//
// A half waits for no memory and makes no fence: over the call that a wait is, all sums would go to
// the stack and back, in every tile, and a fence waits for all that its multiprocessor has stored. So
// it meets its sender, who does both, at mbarriers.
//
// Tiles that make no full round of the blocks are cut along K (schedule.h, Split). A half that has a
// segment before the last puts its sum, in fp32, into memory of this GPU and tells; the half with the
// last segment adds those to its own, in the order of the clusters, and goes on as with any tile.
//
// All blocks end a tile at about the same time, and a link takes a third of a tile's time for what
// they then have for it. So a part is not sent from registers, which the next tile needs: a half's
// sender puts its part into the outbox, memory of this GPU, at that memory's rate; the pusher
// takes it from there at the link's rate while the halves multiply.
//
// A part, a half tile of one rank that another rank adds up, goes as bf16 or fp16 in the order in
// which threads hold it, so a push is a plain row of 8 KiB copies and adding it is sixteen bytes a
// thread, next to each other; no tensor map, no rows, no edges. The sum of an element is taken in
// fp32 in the order of the ranks, and rounded once; the own part is unrounded, but in an exchange,
// where all ranks make the same sum.
//
// Who writes what: a part has one writer, the rank it comes from, and so has its flag
// told[rank][tile][half], which that rank stores behind a fence of the system by the thread that has
// seen the part written (its own warp's stores, or those of threads it has met at an mbarrier) or its
// copies performed (not: read). Parts lie twice, for odd and even epochs (num_slots), where no barrier parts
// the calls: a rank pushes for epoch e + 2 only when it
// is through with e + 1, for which it needed the parts of all others, who pushed them when they were
// through with e.
//
// Why it cannot hang: the loader waits for copies that wait for no kernel of this GPU. A half that
// waits for parts has pushed all that its block owes others: the own shard comes last (scatter), or
// every rank goes through its tiles in the same order and pushes a tile before it waits for it
// (exchange). One that waits for segments of its tile has put away its own of another one's, so no
// circle closes there. All blocks are resident, so pushes happen. Every wait has a deadline
// (device/wait.cuh).
#pragma once

#include "device/bulk.cuh"
#include "device/wait.cuh"
#include "overlap/gemm.h"
#include "overlap/multiply.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace braid::overlap {

template <typename T>
struct Pair;  // two neighbours of a row
template <>
struct Pair<__nv_bfloat16> {
  static __device__ uint32_t of(float a, float b) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
    return reinterpret_cast<const uint32_t&>(both);
  }
  static __device__ float low(uint32_t both) { return __uint_as_float(both << 16); }
  static __device__ float high(uint32_t both) { return __uint_as_float(both & 0xFFFF0000U); }
};
template <>
struct Pair<__half> {
  static __device__ uint32_t of(float a, float b) {
    const __half2 both = __floats2half2_rn(a, b);
    return reinterpret_cast<const uint32_t&>(both);
  }
  static __device__ float low(uint32_t both) {
    return __low2float(reinterpret_cast<const __half2&>(both));
  }
  static __device__ float high(uint32_t both) {
    return __high2float(reinterpret_cast<const __half2&>(both));
  }
};

/// Everything about one kernel that is known when it is compiled.
template <Op kOp_, typename T_, int32_t kTileN_, int32_t kClusterM_, int32_t kClusterN_,
          bool kRowsAlongN_>
struct Kind {
  static constexpr Op kOp = kOp_;
  using T = T_;
  static constexpr Shape kShape{128, kTileN_, kClusterM_, kClusterN_};
  static constexpr bool kRowsAlongN = kRowsAlongN_;  // weights [K, N]
  static constexpr int32_t kTileM = 128, kTileN = kTileN_;
  static constexpr int32_t kCluster = kClusterM_ * kClusterN_;
  static constexpr int32_t kStages = num_stages(kShape);
  static constexpr int32_t kABytes = kTileM * kDepth * 2, kBBytes = kTileN * kDepth * 2;
  static constexpr int32_t kParts = kTileN / kChunkColumns;  // chunks of a half
};

/// What lies where in shared memory, and the mbarriers.
template <typename K>
struct Room {
  uint32_t base;
  __device__ uint32_t a(int stage) const { return base + stage * (K::kABytes + K::kBBytes); }
  __device__ uint32_t b(int stage) const { return a(stage) + K::kABytes; }
  __device__ uint32_t chunk(int half, int number) const {
    return a(K::kStages) + (half * kChunks + number) * kChunkBytes;
  }
  __device__ uint32_t barriers() const { return chunk(2, 0); }
  __device__ uint32_t full(int stage) const { return barriers() + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return full(K::kStages) + 8 * stage; }
  __device__ uint32_t made(int half, int number) const {  // a chunk may be sent
    return empty(K::kStages) + 8 * (half * kChunks + number);
  }
  __device__ uint32_t sent(int half, int number) const {  // a chunk may be written over
    return made(2, 0) + 8 * (half * kChunks + number);
  }
  /// What a half waits for has come: sums of its tile's other segments, other ranks' parts.
  __device__ uint32_t summed(int half) const { return sent(2, 0) + 8 * half; }
  __device__ uint32_t parted(int half) const { return summed(2) + 8 * half; }
  /// No mbarrier but a word: parts that a half has put into the outbox. The pusher may be any number
  /// of them behind.
  __device__ uint32_t queued(int half) const { return parted(2) + 8 * half; }
};

/// Which slot of a ring of kSlots a user is at, and in which pass.
template <int kSlots>
struct Turn {
  int slot = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++slot == kSlots) slot = 0, parity ^= 1U;
  }
};

struct Block {
  uint32_t in_cluster;
  int32_t cluster;
};

template <typename K>
__device__ Block this_block() {
  if constexpr (K::kCluster == 1) return {0, static_cast<int32_t>(blockIdx.x)};
  return {device::block_in_cluster(), static_cast<int32_t>(blockIdx.x) / K::kCluster};
}

template <typename Each>
__device__ __forceinline__ void each_segment(const GemmArgs& args, const Block& block,
                                             const Each& each) {
#pragma unroll 1
  for (int32_t i = 0;; ++i) {
    const Segment segment = args.split.at(block.cluster, i);
    if (segment.unit < 0) return;
    each(args.schedule.at(segment.unit, static_cast<int32_t>(block.in_cluster)), segment);
  }
}
/// Tiles that this block has in the end.
template <typename Each>
__device__ __forceinline__ void each_tile(const GemmArgs& args, const Block& block,
                                          const Each& each) {
  each_segment(args, block, [&](const Tile& tile, const Segment& segment) {
    if (segment.is_last) each(tile);
  });
}

// ---- waiting ----

/// wait_for(), but for a while looking less often, and not at the host's word: blocks that look as
/// often as they can slow the copies that they wait for.
__device__ __forceinline__ bool wait_at_ease(const device::Watch& watch, const uint64_t* flag,
                                             const device::Expected& expected) {
  constexpr int kLooks = 20'000, kPauseNs = 250;
#pragma unroll 1
  for (int i = 0; i < kLooks && device::load_relaxed(flag) < expected.value; ++i)
    __nanosleep(kPauseNs);
  return device::wait_for(watch, flag, expected);
}

// ---- the loader ----

/// Until a tile's rows of A have arrived. Pieces passed once are not asked for again in a row.
struct Gate {
  const GemmArgs& args;
  uint64_t epoch;
  int32_t passed = -1, paced = -1;

  // The last rows of the band, first: blocks that share weights begin together. One that could begin
  // long before another would stay ahead of it, and each column of weights be read once for either.
  __device__ void pass(const Tile& tile, int32_t unit, int32_t rows) {
    const Rows last = args.schedule.end_of_band(unit);
    paced = pass_rows(last.shard, last.row, rows, unit, paced);
    passed = pass_rows(tile.shard, tile.row, rows, unit, passed);
  }
  /// Answers the last piece that has been passed, `before` until then.
  __device__ int32_t pass_rows(int32_t shard, int32_t row, int32_t rows, int32_t unit,
                               int32_t before) {
    const Pieces& pieces = args.pieces;
    const int32_t last = pieces.last(row, rows, args.shard_rows);
#pragma unroll 1
    for (int32_t piece = pieces.first(row); piece <= last; ++piece) {
      const int32_t flag = shard * pieces.per_shard + piece;
      if (flag == before) continue;
      if (!wait_at_ease(args.watch, args.arrived + flag,
                        {device::Wait::kTile, epoch, shard, unit, flag}))
        return before;
      device::before_bulk_copies();
      before = flag;
    }
    return before;
  }
};

template <typename K>
__device__ void load(const GemmArgs& args, const Room<K>& room, const Block& block) {
  Gate gate{args, args.arrived != nullptr ? *const_cast<const volatile uint64_t*>(args.epoch) : 0};
  Turn<K::kStages> turn;
  constexpr uint16_t kBoth = 3;
  const auto at = static_cast<int32_t>(block.in_cluster);
  each_segment(args, block, [&](const Tile& tile, const Segment& segment) {
    if (K::kOp == Op::kGather && args.arrived != nullptr) gate.pass(tile, segment.unit, K::kTileM);
#pragma unroll 1
    for (int32_t k = segment.begin; k < segment.end; ++k, turn.next()) {
      device::wait_mbarrier(room.empty(turn.slot), turn.parity ^ 1U);
      const uint32_t full = room.full(turn.slot), a = room.a(turn.slot), b = room.b(turn.slot);
      device::arrive_and_expect(full, K::kABytes + K::kBBytes);
      const int32_t depth = k * kDepth;
      if constexpr (K::kShape.cluster_n ==
                    2) {  // one row of tiles: each fetches half of A for both
        constexpr int32_t kRows = K::kTileM / 2;
        device::load_tile_for(a + at * kRows * kDepth * 2, args.a,
                              {depth, tile.row + at * kRows, tile.shard}, full, kBoth);
      } else {
        device::load_tile(a, args.a, {depth, tile.row, tile.shard}, full);
      }
      constexpr int32_t kFetched = K::kTileN / K::kShape.cluster_m;  // columns of W
      const int32_t first = K::kShape.cluster_m == 2 ? at * kFetched : 0;
      const auto fetch = [&](uint32_t to, device::TileAt from) {
        if constexpr (K::kShape.cluster_m == 2)
          device::load_tile_for(to, args.w, from, full, kBoth);
        else
          device::load_tile(to, args.w, from, full);
      };
      if constexpr (K::kRowsAlongN) {
#pragma unroll
        for (int32_t n = 0; n < kFetched; n += 64)
          fetch(b + (first + n) * kDepth * 2, {tile.column + first + n, depth, 0});
      } else {
        fetch(b + first * kDepth * 2, {depth, tile.column + first, 0});
      }
    }
  });
}

// ---- a half ----

/// Multiplies num_k stages into `sum`, and leaves them to the loader.
template <typename K>
__device__ __forceinline__ void multiply_all(float (&sum)[K::kTileN / 2], const Room<K>& room,
                                             Turn<K::kStages>& turn, int32_t num_k, int half) {
  // One thread of each half tells each block of the cluster that a stage is free.
  const auto thread = static_cast<int>(threadIdx.x) % 128;
  const auto leave = [&](int slot) {
    if constexpr (K::kCluster == 1) {
      if (thread == 0) device::arrive(room.empty(slot));
    } else {
      if (thread < K::kCluster) device::arrive_at_block(room.empty(slot), thread);
    }
  };
  int last = 0;
#pragma unroll 1
  for (int32_t k = 0; k < num_k; ++k) {
    device::wait_mbarrier(room.full(turn.slot), turn.parity);
    const uint32_t a = room.a(turn.slot) + half * kPartRows * kDepth * 2, b = room.b(turn.slot);
    begin_multiplying();
#pragma unroll
    for (int i = 0; i < kDepth / 16; ++i) {
      const uint64_t right = K::kRowsAlongN ? operand_along_n(b + i * 16 * 128, kDepth * 128)
                                            : operand_along_k(b + i * 32);
      multiply<typename K::T, K::kRowsAlongN>(sum, operand_along_k(a + i * 32), right,
                                              k > 0 || i > 0 ? 1 : 0);
    }
    close_multiplications();
    if (k > 0) {
      wait_until_multiplied<1>();
      leave(last);
    }
    last = turn.slot;
    turn.next();
  }
  wait_until_multiplied<0>();
  leave(last);
  // The compiler must not move what reads the sums into the loop: it would wait at every stage.
#pragma unroll
  for (float& element : sum) asm volatile("" : "+f"(element)::"memory");
}

/// What the threads of a half share when they hand it over.
template <typename K>
struct Handover {
  const GemmArgs& args;
  const Room<K>& room;
  int half;
  Turn<kChunks> turn{};
  Turn<1> summed{}, parted{};

  __device__ int thread() const { return static_cast<int>(threadIdx.x) % 128; }
  /// Behind what this thread has put into memory; the sender tells of it when all have.
  __device__ void say() {
    begin_chunk();
    device::arrive(room.made(half, turn.slot));
    turn.next();
  }
  __device__ void await_sums() {
    device::wait_mbarrier(room.summed(half), summed.parity);
    summed.next();
  }
  __device__ void await_parts() {
    device::wait_mbarrier(room.parted(half), parted.parity);
    parted.next();
  }
  __device__ void begin_chunk() const {
    device::wait_mbarrier(room.sent(half, turn.slot), turn.parity ^ 1U);
  }
  __device__ void end_chunk() {
    device::before_bulk_stores();
    device::arrive(room.made(half, turn.slot));
    turn.next();
  }

  /// 64 columns as rows of C: what a tensor map stores.
  __device__ void put_rows(const float* values) {
    begin_chunk();
    const int lane = thread() % 32, row = thread() / 32 * 16 + lane % 16;
    const uint32_t at = room.chunk(half, turn.slot) + row * 128;
    const int odd = lane / 16, swizzle = row % 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // sixteen columns each
      const float* d = values + 8 * i;
      const uint32_t to = at + ((2 * i + odd) ^ swizzle) * 16;
      asm volatile(
          "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
          "r"(Pair<typename K::T>::of(d[0], d[1])), "r"(Pair<typename K::T>::of(d[2], d[3])),
          "r"(Pair<typename K::T>::of(d[4], d[5])), "r"(Pair<typename K::T>::of(d[6], d[7]))
          : "memory");
    }
    end_chunk();
  }
  /// The same as this thread holds them: what goes to another rank.
  __device__ void put_part(const float* values) {
    begin_chunk();
    const uint32_t at = room.chunk(half, turn.slot) + thread() * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* d = values + 8 * i;
      asm volatile(
          "st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at + i * 2048),
          "r"(Pair<typename K::T>::of(d[0], d[1])), "r"(Pair<typename K::T>::of(d[2], d[3])),
          "r"(Pair<typename K::T>::of(d[4], d[5])), "r"(Pair<typename K::T>::of(d[6], d[7]))
          : "memory");
    }
    end_chunk();
  }
};

/// Adds the bias of a thread's columns.
template <typename K>
__device__ __forceinline__ void add_bias(float (&sum)[K::kTileN / 2], const GemmArgs& args,
                                         int32_t column) {
  if (args.bias == nullptr) return;
  const auto* bias = static_cast<const uint32_t*>(args.bias);
  const int32_t first = column + static_cast<int32_t>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int i = 0; i < K::kTileN / 8; ++i) {
    if (first + 8 * i >= args.columns) break;
    const uint32_t both = __ldg(bias + (first + 8 * i) / 2);
    sum[4 * i] += Pair<typename K::T>::low(both), sum[4 * i + 1] += Pair<typename K::T>::high(both);
    sum[4 * i + 2] += Pair<typename K::T>::low(both);
    sum[4 * i + 3] += Pair<typename K::T>::high(both);
  }
}

/// Among those of all shards.
__device__ __forceinline__ int32_t batch_of(const GemmArgs& args, const Tile& tile) {
  return tile.shard * args.batches.per_shard + tile.index / args.batches.tiles;
}

template <typename K>
constexpr int32_t kHalfBytes = kPartRows * K::kTileN * 2;

/// Index of a half's flag among those of one rank.
__device__ __forceinline__ int32_t half_index(const Tile& tile, int half) {
  return 2 * tile.index + half;
}
template <typename K>
__device__ __forceinline__ int64_t half_at(const GemmArgs& args, uint64_t epoch, int from,
                                           const Tile& tile, int half) {
  const auto slot = static_cast<int64_t>(epoch % args.num_slots) * args.num_ranks + from;
  return slot * args.part_bytes + int64_t{half_index(tile, half)} * kHalfBytes<K>;
}
template <typename K>
__device__ __forceinline__ char* outbox_at(const GemmArgs& args, const Tile& tile, int half) {
  return args.outbox + tile.shard * args.part_bytes +
         int64_t{half_index(tile, half)} * kHalfBytes<K>;
}
__device__ __forceinline__ int64_t told_index(const GemmArgs& args, int from, const Tile& tile,
                                              int half) {
  return int64_t{from} * 2 * args.schedule.tiles_per_shard() + half_index(tile, half);
}

/// What the other ranks have of it, so that all add up the same.
template <typename K>
__device__ __forceinline__ void round_as_part(float* own) {
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const uint32_t both = Pair<typename K::T>::of(own[i], own[i + 1]);
    own[i] = Pair<typename K::T>::low(both), own[i + 1] = Pair<typename K::T>::high(both);
  }
}

/// The other ranks' parts of eight elements that a thread has of a half; zeros of ranks that there
/// are not, which change no sum.
__device__ __forceinline__ void load_parts(uint4 (&part)[kMostRanks], const GemmArgs& args,
                                           const char* parts) {
#pragma unroll
  for (int r = 0; r < kMostRanks; ++r) {
    part[r] = {0, 0, 0, 0};
    if (r < args.num_ranks && r != args.rank)
      part[r] = __ldcg(reinterpret_cast<const uint4*>(parts + r * args.part_bytes));
  }
}

/// The sum over ranks, in their order. No branches: with them the compiler kept sums in memory.
template <typename K>
__device__ __forceinline__ void add_parts(float* own, const uint4 (&part)[kMostRanks], int rank) {
  float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
  for (int r = 0; r < kMostRanks; ++r) {
    const uint32_t words[4] = {part[r].x, part[r].y, part[r].z, part[r].w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[2 * i] += r == rank ? own[2 * i] : Pair<typename K::T>::low(words[i]);
      sum[2 * i + 1] += r == rank ? own[2 * i + 1] : Pair<typename K::T>::high(words[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) own[i] = sum[i];
}

/// Of a whole half; the parts of the next eight elements are on their way while eight are added.
template <typename K>
__device__ __forceinline__ void add_all_parts(float (&sum)[K::kTileN / 2], const GemmArgs& args,
                                              const char* parts) {
  constexpr int kGroups = K::kTileN / 16;
  uint4 part[2][kMostRanks];
  load_parts(part[0], args, parts);
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    if (i + 1 < kGroups) load_parts(part[(i + 1) % 2], args, parts + (i + 1) * 2048);
    if constexpr (K::kOp == Op::kExchange) round_as_part<K>(sum + 8 * i);
    add_parts<K>(sum + 8 * i, part[i % 2], args.rank);
    asm volatile("" ::: "memory");  // more loads ahead would need registers that sums have
  }
}

// ---- sums of segments ----

/// Of a cluster's block and half, among kMostBlocks * 2.
template <typename K>
__device__ __forceinline__ int32_t sum_index(int32_t cluster, const Block& block, int half) {
  return (cluster * K::kCluster + static_cast<int32_t>(block.in_cluster)) * 2 + half;
}
template <typename K>
__device__ __forceinline__ float4* sum_at(const GemmArgs& args, int32_t index) {
  const auto thread = static_cast<int>(threadIdx.x) % 128;
  return reinterpret_cast<float4*>(args.sums + index * sum_bytes(K::kShape)) + thread;
}

/// For who has the last segment of the unit.
template <typename K>
__device__ __forceinline__ void put_sum(const float (&sum)[K::kTileN / 2], const GemmArgs& args,
                                        const Block& block, int half) {
  float4* to = sum_at<K>(args, sum_index<K>(block.cluster, block, half));
#pragma unroll
  for (int i = 0; i < K::kTileN / 8; ++i)
    __stcg(to + i * 128, make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]));
}

/// Those of all segments before, in the order of the clusters that have them.
template <typename K>
__device__ __forceinline__ void add_sums(float (&sum)[K::kTileN / 2], const GemmArgs& args,
                                         const Block& block, int half, int32_t unit) {
#pragma unroll 1
  for (int32_t from = args.split.first_sharer(unit); from < block.cluster; ++from) {
    const float4* part = sum_at<K>(args, sum_index<K>(from, block, half));
    constexpr int kAtOnce = 8;
#pragma unroll
    for (int i = 0; i < K::kTileN / 8; i += kAtOnce) {
      float4 more[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) more[j] = __ldcg(part + (i + j) * 128);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        float* to = sum + 4 * (i + j);
        to[0] += more[j].x, to[1] += more[j].y, to[2] += more[j].z, to[3] += more[j].w;
      }
      asm volatile("" ::: "memory");  // as in add_all_parts()
    }
  }
}

template <typename K>
__device__ void compute(const GemmArgs& args, const Room<K>& room, const Block& block, int half) {
  float sum[K::kTileN / 2];
  Turn<K::kStages> turn;
  Handover<K> handover{args, room, half};
  const uint64_t epoch =
      K::kOp == Op::kGather ? 0 : *const_cast<const volatile uint64_t*>(args.epoch);
  each_segment(args, block, [&](const Tile& tile, const Segment& segment) {
    // Where a segment ends comes out of a division, which the compiler takes for each thread's own. It
    // would keep stages and operands in each thread's registers then: a quarter more instructions in
    // the loop of products.
    const int32_t num_k = __shfl_sync(~0U, segment.end - segment.begin, 0);
    multiply_all<K>(sum, room, turn, num_k, half);
    if constexpr (K::kOp != Op::kExchange) {
      if (!segment.is_last) {
        put_sum<K>(sum, args, block, half);
        handover.say();
        return;
      }
      if (segment.begin > 0) {
        handover.await_sums();
        add_sums<K>(sum, args, block, half, segment.unit);
      }
    }
    if constexpr (K::kOp != Op::kGather) {
      if (K::kOp == Op::kExchange || tile.shard != args.rank) {
#pragma unroll
        for (int c = 0; c < K::kParts; ++c) handover.put_part(sum + 32 * c);
      }
      if (K::kOp == Op::kScatter && tile.shard != args.rank) return;
      handover.await_parts();
      add_all_parts<K>(sum, args,
                       args.parts_at[args.rank] + half_at<K>(args, epoch, 0, tile, half) +
                           handover.thread() * 16);
    }
    add_bias<K>(sum, args, tile.column);
#pragma unroll
    for (int c = 0; c < K::kParts; ++c) handover.put_rows(sum + 32 * c);
  });
}

// ---- a sender ----

template <typename K>
struct Sender {
  const GemmArgs& args;
  const Room<K>& room;
  int half;
  uint64_t epoch;
  Turn<kChunks> turn{};
  uint32_t num_put = 0;

  /// When the half has put into memory what `tell` tells of.
  template <typename Tell>
  __device__ void after_half(const Tell& tell) {
    device::wait_mbarrier(room.made(half, turn.slot), turn.parity);
    tell();
    device::arrive(room.sent(half, turn.slot));
    turn.next();
  }
  __device__ void tell_of_sum(int32_t index) {
    after_half([&] {
      if (!device::has_failed(args.watch)) device::store_release(args.summed + index, epoch);
    });
  }
  /// The other segments' sums.
  __device__ void await_sums(const Block& block, int32_t unit) const {
#pragma unroll 1
    for (int32_t from = args.split.first_sharer(unit); from < block.cluster; ++from) {
      const int32_t index = sum_index<K>(from, block, half);
      (void)wait_at_ease(args.watch, args.summed + index,
                         {device::Wait::kTile, epoch, args.rank, unit, index});
    }
    device::arrive(room.summed(half));
  }
  /// The other ranks' parts.
  __device__ void await_parts(const Tile& tile, int32_t unit) const {
#pragma unroll 1
    for (int32_t from = 0; from < args.num_ranks; ++from) {
      if (from == args.rank) continue;
      const int64_t flag = told_index(args, from, tile, half);
      (void)wait_at_ease(args.watch, args.told_at[args.rank] + flag,
                         {device::Wait::kTile, epoch, from, unit, static_cast<int32_t>(flag)});
    }
    device::arrive(room.parted(half));
  }

  /// Of every chunk of a half: waits until it is made, sends it by `send`, and gives it back.
  template <typename Send>
  __device__ void each_chunk(const Send& send) {
#pragma unroll 1
    for (int c = 0; c < K::kParts; ++c, turn.next()) {
      device::wait_mbarrier(room.made(half, turn.slot), turn.parity);
      send(c, room.chunk(half, turn.slot));
      device::close_stores();
      device::wait_until_read<0>();
      device::arrive(room.sent(half, turn.slot));
    }
  }
  __device__ void store(const Tile& tile) {
    each_chunk([&](int c, uint32_t chunk) {
      const device::TileAt at{tile.column + c * kChunkColumns, tile.row + half * kPartRows,
                              args.c_is_shard != 0 ? 0 : tile.shard};
#pragma unroll 1
      for (int i = 0; i < args.num_c; ++i) device::store_tile(args.c[i], at, chunk);
    });
  }
  /// Into the outbox; and tells the copy engine's stream, or the pusher.
  __device__ void put_out(const Tile& tile) {
    char* part = outbox_at<K>(args, tile, half);
    each_chunk([&](int c, uint32_t chunk) {
      device::store_bulk(part + int64_t{c} * kChunkBytes, chunk, kChunkBytes);
    });
    device::wait_until_stored<0>();
    if (args.finished != nullptr)
      device::add_release(args.finished + batch_of(args, tile), 1);
    else
      device::store_release_shared(room.queued(half), ++num_put);
  }
  /// To all other ranks.
  __device__ void push(const Tile& tile) {
    const int64_t at = half_at<K>(args, epoch, args.rank, tile, half);
    const auto each_rank = [&](const auto& each) {
#pragma unroll 1
      for (int32_t i = 1; i < args.num_ranks; ++i) each((args.rank + i) % args.num_ranks);
    };
    each_chunk([&](int c, uint32_t chunk) {
      each_rank([&](int32_t to) {
        device::store_bulk(args.parts_at[to] + at + int64_t{c} * kChunkBytes, chunk, kChunkBytes);
      });
    });
    device::wait_until_stored<0>();
    if (device::has_failed(args.watch)) return;
    each_rank([&](int32_t to) {
      device::store_release(args.told_at[to] + told_index(args, args.rank, tile, half), epoch);
    });
  }
};

template <typename K>
__device__ void send(const GemmArgs& args, const Room<K>& room, const Block& block, int half) {
  Sender<K> sender{args, room, half, *const_cast<const volatile uint64_t*>(args.epoch)};
  each_segment(args, block, [&](const Tile& tile, const Segment& segment) {
    if (!segment.is_last) return sender.tell_of_sum(sum_index<K>(block.cluster, block, half));
    if (segment.begin > 0) sender.await_sums(block, segment.unit);
    if (K::kOp == Op::kScatter && tile.shard != args.rank) return sender.put_out(tile);
    if constexpr (K::kOp == Op::kExchange) sender.push(tile);
    if constexpr (K::kOp != Op::kGather) sender.await_parts(tile, segment.unit);
    sender.store(tile);
  });
  device::wait_until_stored<0>();
}

// ---- the pusher ----

/// A warp copies a half: four loads of each thread are under way before the first store.
template <typename K>
__device__ __forceinline__ void copy_half(char* to, const char* from) {
  constexpr int kAtOnce = 4, kStride = 32 * 16;
  const auto lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int at = lane * 16; at < kHalfBytes<K>; at += kAtOnce * kStride) {
    uint4 words[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      words[i] = __ldcg(reinterpret_cast<const uint4*>(from + at + i * kStride));
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) *reinterpret_cast<uint4*>(to + at + i * kStride) = words[i];
  }
}

/// All lanes of one warp.
template <typename K>
__device__ void push(const GemmArgs& args, const Room<K>& room, const Block& block) {
  const uint64_t epoch = *const_cast<const volatile uint64_t*>(args.epoch);
  uint32_t number = 0;
  each_tile(args, block, [&](const Tile& tile) {
    if (tile.shard == args.rank) return;
    ++number;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      while (device::load_acquire_shared(room.queued(half)) < number) __nanosleep(200);
      __syncwarp();
      copy_half<K>(args.parts_at[tile.shard] + half_at<K>(args, epoch, args.rank, tile, half),
                   outbox_at<K>(args, tile, half));
      __syncwarp();
      if (threadIdx.x % 32 == 0 && !device::has_failed(args.watch))
        device::store_release(args.told_at[tile.shard] + told_index(args, args.rank, tile, half),
                              epoch);
    }
  });
}

// ---- all of it ----

template <typename K>
__device__ void prepare(const Room<K>& room, const GemmArgs& args) {
  if (threadIdx.x == 0) {
    device::prefetch_map(args.a);
    device::prefetch_map(args.w);
    device::prefetch_map(args.c[0]);
    for (int stage = 0; stage < K::kStages; ++stage) {
      device::init_mbarrier(room.full(stage), 1);
      device::init_mbarrier(room.empty(stage), 2 * K::kCluster);
    }
    for (int half = 0; half < 2; ++half)
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        device::init_mbarrier(room.made(half, chunk), 128);
        device::init_mbarrier(room.sent(half, chunk), 1);
      }
    for (int half = 0; half < 2; ++half) {
      device::init_mbarrier(room.summed(half), 1);
      device::init_mbarrier(room.parted(half), 1);
      device::store_release_shared(room.queued(half), 0);
    }
    device::publish_mbarriers();
  }
  if constexpr (K::kCluster == 1)
    __syncthreads();
  else
    device::meet_cluster();
}

template <typename K>
__device__ __forceinline__ void run(const GemmArgs& args) {
  extern __shared__ char shared[];
  const Room<K> room{(device::shared_address(shared) + 1023) & ~1023U};
  const Block block = this_block<K>();
  prepare(room, args);
  const auto warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x % 32 == 0) {
      if (warp == 0) load<K>(args, room, block);
      if (warp == 1 || warp == 2) send<K>(args, room, block, warp - 1);
    }
    __syncwarp();
    if constexpr (K::kOp == Op::kScatter)
      if (warp == 3 && args.finished == nullptr) push<K>(args, room, block);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    compute<K>(args, room, block, warp / 4 - 1);
  }
  // A block stays until the other needs nothing of it: neither its stages nor its barriers.
  if constexpr (K::kCluster == 2) {
    __syncwarp();
    device::meet_cluster();
  }
}

}  // namespace braid::overlap

#endif
