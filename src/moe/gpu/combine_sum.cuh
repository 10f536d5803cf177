// Sums of a normal combine: of a batch of tokens all rows are found, by all threads, and then added up, a piece of a
// token by each warp, in the order of ranks.
#pragma once

#include "moe/gpu/copies.cuh"
#include "moe/gpu/row_sum.cuh"

namespace braid::moe::gpu {

/// A round's rows, for whom adds them up: those of other ranks in their slots, own ones in x.
struct RoundRows {
  const CombineArgs& args;
  const Phase& phase;
  uint32_t own_first, num_own;  // of x

  /// The slots of more own rows than were said to be are empty, and the call fails for them.
  __device__ __forceinline__ bool is_in_x(int rank, uint32_t slot) const {
    return rank == args.team.rank && slot < num_own;
  }
  __device__ __forceinline__ const std::byte* copy(int rank, uint32_t slot) const {
    return phase.region_of(rank) + slot * args.rounds.copy_bytes;
  }
  __device__ __forceinline__ const std::byte* row(int rank, uint32_t slot) const {
    if (is_in_x(rank, slot)) return args.x + (uint64_t{own_first} + slot) * args.row_bytes;
    return copy(rank, slot) + args.rounds.row;
  }
  __device__ __forceinline__ const float* weights(int rank, uint32_t slot) const {
    if (is_in_x(rank, slot)) return args.weights + (uint64_t{own_first} + slot) * args.num_topk;
    return reinterpret_cast<const float*>(copy(rank, slot));
  }
};

/// Tokens that a block adds up next: whose rows, in which slots, and where those are.
struct BatchToSum : Batch {
  const std::byte* row[kBatch][kMostRanks];
};
/// All threads, of which each has a place in it. Met before and after.
__device__ __forceinline__ void find_batch(const RoundRows& rows, BatchToSum* batch) {
  static_assert(kThreads == kBatch * kMostRanks);
  const int i = warp_of_thread() * 2 + lane_of_thread() / kMostRanks;
  const int rank = lane_of_thread() % kMostRanks;
  if ((batch->mask[i] >> rank & 1) != 0) batch->row[i][rank] = rows.row(rank, batch->slot[i][rank]);
  __syncthreads();
}

inline constexpr int kEach = 4, kRows = 4;  // vectors of a lane, rows: so many loads are under way

/// By a warp: up to kEach vectors of every lane of a token, of which this lane's first is `first`.
template <typename Type>
__device__ __forceinline__ void sum_vectors(const CombineArgs& args, const BatchToSum& batch, int i,
                                            int64_t token, int first, int vectors) {
  constexpr uint64_t kStep = 32 * kVectorBytes;
  const uint64_t offset = static_cast<uint64_t>(first) * kVectorBytes;
  const uint32_t mask = batch.mask[i];
  RowSum<Type> sum[kEach];
  for (int begin = 0; begin < args.team.layout.num_ranks; begin += kRows) {
    uint4 v[kRows][kEach] = {};  // else what is not loaded is kept from turn to turn, in registers
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if ((mask >> (begin + r) & 1) == 0) continue;
      const std::byte* const row = batch.row[i][begin + r] + offset;
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        if (first + 32 * e < vectors) v[r][e] = load_vector(row + e * kStep);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if ((mask >> (begin + r) & 1) != 0)
#pragma unroll
        for (int e = 0; e < kEach; ++e) sum[e].add(v[r][e]);
  }
  const uint64_t own = static_cast<uint64_t>(token) * args.row_bytes + offset;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    if (first + 32 * e >= vectors) continue;
    for (const std::byte* bias : args.biases)
      if (bias != nullptr) sum[e].add(load_vector(bias + own + e * kStep));
    store_vector(args.out + own + e * kStep, sum[e].rounded());
  }
}

/// By a warp: lane k has a token's k-th weight.
__device__ inline void sum_weights(const CombineArgs& args, const RoundRows& rows,
                                   const Batch& batch, int i, int64_t token) {
  const int lane = lane_of_thread();
  if (lane >= args.num_topk) return;
  float sum = 0;
  each_rank(batch.mask[i], [&](int rank) {
    sum = __fadd_rn(sum, seen(rows.weights(rank, batch.slot[i][rank]) + lane));
  });
  args.out_weights[token * args.num_topk + lane] = sum;
}

/// All threads: the sums of `count` tokens from `at` on, of a batch.
template <typename Type>
__device__ void sum_batch(const CombineArgs& args, const RoundRows& rows, const BatchToSum& batch,
                          int at, int count) {
  const auto vectors = static_cast<int>(args.row_bytes / kVectorBytes);
  const int pieces = (vectors + 32 * kEach - 1) / (32 * kEach);
  for (int unit = warp_of_thread(); unit < count * pieces; unit += kWarps) {
    const int i = unit / pieces, first = unit % pieces * 32 * kEach + lane_of_thread();
    sum_vectors<Type>(args, batch, i, at + i, first, vectors);
    if (unit % pieces == 0 && args.out_weights != nullptr)
      sum_weights(args, rows, batch, i, at + i);
  }
}

/// All threads: the sums of a round's tokens. What ranks sent back must be what they got.
template <typename Type>
__device__ void sum_round(const CombineArgs& args, const Roles& roles, const RoundRows& rows,
                          int round, const Arrived& arrived) {
  __shared__ uint32_t next[kMostRanks];
  __shared__ BatchToSum batch;
  const int n = args.team.layout.num_ranks;
  const MaskOfRanks mask_of{args.is_in_rank, n};
  const int first = min(args.rounds.first(round), args.num_tokens);
  const Share share = roles.share_to_take(args.rounds.last(round, args.num_tokens) - first);
  __syncthreads();
  if (threadIdx.x < kMostRanks) next[threadIdx.x] = 0;
  count_copies(mask_of, first, first + share.begin, n, next);
  for (int at = first + share.begin; at < first + share.end; at += kBatch) {
    const int count = min(kBatch, first + share.end - at);
    number_batch(mask_of, at, count, n, next, &batch);
    find_batch(rows, &batch);
    sum_batch<Type>(args, rows, batch, at, count);
  }
  __syncthreads();
  const auto rank = static_cast<int>(threadIdx.x);
  if (blockIdx.x == gridDim.x - 1 && rank < n && arrived.rows[rank] != next[rank])
    device::give_up(args.team.watch,
                    {Wait::kAgreement, next[rank], rank, 0, 1 + sizeof(CallShape) / 4},
                    arrived.rows[rank], false);
}

}  // namespace braid::moe::gpu
