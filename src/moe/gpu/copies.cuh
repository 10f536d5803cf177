// Slots of copies: a token's number among those of its source that go to the same rank, in the order
// of tokens. Each block counts the tokens before its own ones, by votes of a warp; nobody asks
// another, and no counter is shared.
#pragma once

#include "moe/gpu/phase.cuh"

namespace braid::moe::gpu {

inline constexpr int kBatch = 32;  // tokens that are numbered at a time

/// The rank of an expert: a quotient of numbers up to kMostExperts by a product, exact, since their
/// product is at most 2^kShift.
class RankOf {
 public:
  __device__ RankOf(int num_experts, int num_ranks)
      : of_rank_(((1U << kShift) * static_cast<uint32_t>(num_ranks) +
                  static_cast<uint32_t>(num_experts) - 1) /
                 static_cast<uint32_t>(num_experts)) {}
  __device__ __forceinline__ int operator()(uint32_t id) const {
    return static_cast<int>((static_cast<uint64_t>(id) * of_rank_) >> kShift);
  }

 private:
  static constexpr int kShift = 22;
  static_assert(static_cast<int64_t>(kMostExperts) * kMostExperts <= 1 << kShift);
  const uint32_t of_rank_;
};

/// Which ranks a token goes to, as bits, by its ids. An id that is none is refused and goes nowhere.
class MaskOfIds {
 public:
  __device__ MaskOfIds(const int64_t* ids, int num_topk, int num_experts, int num_ranks,
                       const device::Watch& watch)
      : ids_(ids),
        num_topk_(num_topk),
        num_experts_(static_cast<uint32_t>(num_experts)),
        rank_of_(num_experts, num_ranks),
        watch_(watch) {}

  __device__ __forceinline__ uint32_t operator()(int token) const {
    uint32_t mask = 0;
    const int64_t* const own = ids_ + static_cast<int64_t>(token) * num_topk_;
    for (int first = 0; first < num_topk_; first += kIdsInFlight) {
      int64_t id[kIdsInFlight];
#pragma unroll
      for (int k = 0; k < kIdsInFlight; ++k) id[k] = first + k < num_topk_ ? own[first + k] : -1;
#pragma unroll
      for (int k = 0; k < kIdsInFlight; ++k) {
        if (id[k] >= 0 && id[k] < num_experts_)
          mask |= 1U << rank_of_(static_cast<uint32_t>(id[k]));
        else if (id[k] != -1)
          refuse(watch_, kTopkIdx, num_experts_ - 1, static_cast<uint64_t>(id[k]), token);
      }
    }
    return mask;
  }
  static constexpr int32_t kTopkIdx = 1;

 private:
  static constexpr int kIdsInFlight = 8;

  const int64_t* const ids_;
  const int32_t num_topk_;
  const uint32_t num_experts_;
  const RankOf rank_of_;
  const device::Watch& watch_;
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

/// Copies of all sources behind each other, by warps: every lane knows of one source.
class CopiesInOrder {
 public:
  struct At {
    int source, number;
  };
  /// `own`: how many of source `lane`, 0 where there is none.
  __device__ explicit CopiesInOrder(int own) : end_(own) {
    const int lane = lane_of_thread();
#pragma unroll
    for (int far = 1; far < kMostRanks; far *= 2) {
      const int other = __shfl_up_sync(~0U, end_, far);
      if (lane >= far) end_ += other;
    }
    begin_ = end_ - own;
    total_ = __shfl_sync(~0U, end_, kMostRanks - 1);
  }
  __device__ __forceinline__ int total() const { return total_; }
  __device__ __forceinline__ At operator[](int copy) const {
    const uint32_t over = __ballot_sync(~0U, lane_of_thread() < kMostRanks && end_ <= copy);
    const int source = __popc(over);
    return {source, copy - __shfl_sync(~0U, begin_, source)};
  }

 private:
  int begin_, end_, total_;
};

/// The ranks of a mask.
template <typename Each>
__device__ __forceinline__ void each_rank(uint32_t mask, const Each& each) {
  for (; mask != 0; mask &= mask - 1) each(__ffs(static_cast<int>(mask)) - 1);
}

}  // namespace braid::moe::gpu
