// Slots of copies: a token's number among those of its source that go to the same rank, in the order
// of tokens. Each block counts the tokens before its own ones, by votes of a warp; nobody asks
// another, and no counter is shared.
#pragma once

#include "moe/gpu/phase.cuh"

namespace braid::moe::gpu {

inline constexpr int kBatch = 32;  // tokens that are numbered at a time

/// Which ranks a token goes to, as bits, by its ids. An id that is none is refused and goes nowhere.
struct MaskOfIds {
  const int64_t* ids;
  int32_t num_topk;
  uint32_t num_experts, per_rank;
  const device::Watch& watch;

  __device__ __forceinline__ uint32_t operator()(int token) const {
    uint32_t mask = 0;
    const int64_t* const own = ids + static_cast<int64_t>(token) * num_topk;
    for (int k = 0; k < num_topk; ++k) {
      const int64_t id = own[k];
      if (id >= 0 && id < num_experts)
        mask |= 1U << (static_cast<uint32_t>(id) / per_rank);
      else if (id != -1)
        refuse(watch, kTopkIdx, num_experts - 1, static_cast<uint64_t>(id), token);
    }
    return mask;
  }
  static constexpr int32_t kTopkIdx = 1;
};

struct MaskOfRanks {
  const bool* is_in_rank;  // [T, N]
  int32_t num_ranks;

  __device__ __forceinline__ uint32_t operator()(int token) const {
    uint32_t mask = 0;
    const bool* const own = is_in_rank + static_cast<int64_t>(token) * num_ranks;
    for (int r = 0; r < num_ranks; ++r) mask |= own[r] ? 1U << r : 0U;
    return mask;
  }
};

/// All threads: adds to counts [kMostRanks], in shared memory, the copies of tokens begin to end to
/// each rank. Met before and after.
template <typename MaskOf>
__device__ void count_copies(const MaskOf& mask_of, int begin, int end, int num_ranks,
                             uint32_t* counts) {
  __syncthreads();
  const int lane = lane_of_thread();
  uint32_t mine = 0;  // of rank `lane`
  for (int at = begin + 32 * warp_of_thread(); at < end; at += kThreads) {
    const uint32_t mask = at + lane < end ? mask_of(at + lane) : 0;
    for (int r = 0; r < num_ranks; ++r) {
      const auto copies = static_cast<uint32_t>(__popc(__ballot_sync(~0U, (mask >> r & 1) != 0)));
      mine += lane == r ? copies : 0;
    }
  }
  if (mine != 0) atomicAdd(counts + lane, mine);
  __syncthreads();
}

/// The tokens that a block has before it: whom each goes to and in which slot.
struct Batch {
  uint32_t mask[kBatch];
  uint32_t slot[kBatch][kMostRanks];
};
/// All threads: numbers `count` tokens (at most kBatch) from `begin` on; `next` [kMostRanks] is each
/// rank's next slot, and goes on behind them. Met before and after.
template <typename MaskOf>
__device__ void number_batch(const MaskOf& mask_of, int begin, int count, int num_ranks,
                             uint32_t* next, Batch* batch) {
  __syncthreads();
  if (warp_of_thread() == 0) {
    const int lane = lane_of_thread();
    const uint32_t mask = lane < count ? mask_of(begin + lane) : 0;
    batch->mask[lane] = mask;
    for (int r = 0; r < num_ranks; ++r) {
      const uint32_t going = __ballot_sync(~0U, (mask >> r & 1) != 0);
      const uint32_t first = next[r];
      batch->slot[lane][r] = first + static_cast<uint32_t>(__popc(going & ((1U << lane) - 1)));
      __syncwarp();
      if (lane == 0) next[r] = first + static_cast<uint32_t>(__popc(going));
    }
  }
  __syncthreads();
}

/// The ranks of a mask.
template <typename Each>
__device__ __forceinline__ void each_rank(uint32_t mask, const Each& each) {
  for (; mask != 0; mask &= mask - 1) each(__ffs(static_cast<int>(mask)) - 1);
}

}  // namespace braid::moe::gpu
