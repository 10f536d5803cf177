// Sums that go on to the peers by bulk copies (sm_90 and later): the turns of an all-reduce in two
// shots. A block's plain stores carry 12 GB/s over NVLink; what it can sum of four ranks, for three
// peers, is 33.
//
// Each warp has a share of every chunk and a ring of tiles in shared memory, and works through its
// share tile by tile:
//
//   sum     operands -> recv and ring       all lanes, a vector of each per row
//   store   ring -> the peers' region 1     lane 0, one group of bulk copies a tile
//
// What a warp sends it has summed itself, so that no barrier of the block stands between sums and
// stores, and no warp waits for what another sends. Lane 0 sees a chunk's stores performed behind
// the first tile of the next chunk, when they have had the time of a tile for their trip.
//
// Push blocks that are through could send the sums out of recv instead: they would wait for turns,
// which come behind them (nothing hangs, in direct.cuh), and fetch from memory what is at hand
// here. One sender for the whole block would need a barrier for every tile.
#pragma once

#include "coll/direct/direct.cuh"
#include "transport/nvlink/bulk_copy.cuh"

namespace braid::coll::device {

#if __CUDA_ARCH__ >= 900

inline constexpr uint32_t kSumTileBytes = 2 << 10;
inline constexpr uint32_t kSumTiles = 6;  // of a warp's ring
inline constexpr uint32_t kWarpRowBytes = 32 * kVectorBytes;

struct SumMemory {
  alignas(128) char tiles[kDirectWarps][kSumTiles][kSumTileBytes];
};
static_assert(sizeof(SumMemory) <= kBulkSharedBytes);

__device__ __forceinline__ void store_shared(uint32_t to, const Vector& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.words[0]),
               "r"(v.words[1]), "r"(v.words[2]), "r"(v.words[3])
               : "memory");
}

/// A warp's shares of a block's chunks. All lanes call all members.
template <typename R, int kVectors>
class WarpSums {
 public:
  __device__ WarpSums(SumMemory* memory, uint64_t chunk_bytes)
      : lane_(threadIdx.x % 32),
        ring_(nvlink::shared_address(memory->tiles[threadIdx.x / 32])),
        share_bytes_(share_of(static_cast<uint32_t>(chunk_bytes))) {}

  /// The next chunk: dsts[0] is recv, and the others are addresses of vectors, as all sources are.
  /// When it returns, the stores of the chunk before it have been performed.
  __device__ __forceinline__ void run(const ReduceArgs& sum) {
    const auto bytes = static_cast<uint32_t>(sum.count_elements * R::kBytes);
    const uint32_t whole = bytes / kVectorBytes * kVectorBytes;
    reduce_ends<R>(sum, block_threads(), 0, whole / R::kBytes);
    const uint32_t first = threadIdx.x / 32 * share_bytes_;
    const uint32_t end = min(first + share_bytes_, whole);
#pragma unroll 1
    for (uint32_t begin = first; begin == first || begin < end; begin += kSumTileBytes) {
      run_tile(sum, begin, begin < end ? min(end - begin, kSumTileBytes) : 0);
      if (lane_ == 0 && begin == first) nvlink::wait_until_stored<1>();
    }
  }

  /// All stores have been performed, and shared memory is no longer read.
  __device__ __forceinline__ void finish() const {
    if (lane_ == 0) nvlink::wait_until_stored<0>();
  }

 private:
  static constexpr int kAtOnce = (kVectors + 1) / 2;  // vectors of a source, as in reduce_arrays()
  static constexpr uint32_t kBatchBytes = kAtOnce * kWarpRowBytes;
  using Sums = Batch<R, 4, kAtOnce>;

  static __device__ __forceinline__ uint32_t share_of(uint32_t chunk_bytes) {
    constexpr uint32_t kRows = kDirectWarps * kWarpRowBytes;
    return (chunk_bytes + kRows - 1) / kRows * kWarpRowBytes;
  }

  /// `bytes`: whole vectors of a tile, or 0, whose group of stores is empty.
  __device__ __forceinline__ void run_tile(const ReduceArgs& sum, uint32_t begin, uint32_t bytes) {
    const uint32_t slot = ring_ + at_ * kSumTileBytes;
    at_ = at_ + 1 == kSumTiles ? 0 : at_ + 1;
    if (lane_ == 0) nvlink::wait_until_read<kSumTiles - 1>();
    __syncwarp();
#pragma unroll 1
    for (uint32_t b = lane_ * kVectorBytes; b < bytes; b += kBatchBytes) {
      const uint32_t rows = (bytes - b + kWarpRowBytes - 1) / kWarpRowBytes;
      Sums batch(sum, begin + b, kWarpRowBytes, rows);
      batch.sum_all();
      store(batch, slot + b);
    }
    nvlink::before_bulk_stores();
    __syncwarp();
    if (lane_ != 0) return;
#pragma unroll 1
    for (int d = 1; d < sum.num_dsts; ++d) nvlink::store_bulk(at(sum.dsts[d], begin), slot, bytes);
    nvlink::close_stores();
  }

  static __device__ __forceinline__ void store(const Sums& batch, uint32_t to_shared) {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (u >= batch.present) continue;
      Vector out;
      pack<R, kVectorWords>(batch.acc[u], batch.args.num_srcs, out.words);
      store_vector(at(batch.args.dsts[0], batch.offset_bytes + u * kWarpRowBytes), out);
      store_shared(to_shared + u * kWarpRowBytes, out);
    }
  }

  uint32_t lane_, ring_, share_bytes_;
  uint32_t at_ = 0;  // slot of the next tile
};

#endif

}  // namespace braid::coll::device
