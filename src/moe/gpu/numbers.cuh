// Numbers of a low-latency send: the slot of every copy and, for the receivers, the number of every row
// among those of this source to its expert. Both follow from the ids of the tokens before: each block
// counts them for itself, nobody asks another, and no counter is shared.
#pragma once

#include "moe/gpu/copies.cuh"

namespace braid::moe::gpu {

/// Of a block, in shared memory.
struct SendMemory {
  int32_t rows[kMostExperts];   // [E], of the tokens before
  uint32_t copies[kMostRanks];  // [N], likewise
  // Of the batch that a block is at:
  alignas(16) int32_t ids[kBatch * kMostTopk];  // [token, k], -1: none
  int32_t words[kBatch * kMostTopk];            // word_of() each, for the rank that has the expert
  uint32_t mask[kBatch];                        // ranks that a token goes to
  std::byte* slots[kBatch][kMostRanks];
};

class SendCounter {
 public:
  __device__ SendCounter(const LlSendArgs& args, SendMemory* numbers)
      : args_(args), rank_of_(args.num_experts, args.team.layout.num_ranks), numbers_(numbers) {}

  /// A thread's ids, on their way: of a batch of `count` tokens, kBatch at most; and the first of what
  /// count() looks at.
  struct Ids {
    int64_t of_batch[kBatch * kMostTopk / kThreads];
  };
  static constexpr int kIdsInFlight = 8;
  struct Before {
    int64_t id[kIdsInFlight];
  };
  __device__ Ids load(int begin, int count) const {
    Ids ids;
#pragma unroll
    for (int i = 0; i < kIdsOfThread; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kThreads;
      ids.of_batch[i] = at < count * args_.num_topk
                            ? args_.ids[static_cast<int64_t>(begin) * args_.num_topk + at]
                            : -1;
    }
    return ids;
  }
  __device__ Before load_before(int end) const {
    Before before;
    const auto token = static_cast<int>(threadIdx.x);
    load_ids(args_.ids + static_cast<int64_t>(token) * args_.num_topk,
             token < end ? args_.num_topk : 0, before.id);
    return before;
  }

  /// All threads: as of no token, and no batch. Threads meet before the next step.
  __device__ void clear() const {
    for (int e = static_cast<int>(threadIdx.x); e < args_.num_experts; e += kThreads)
      numbers_->rows[e] = 0;
    if (threadIdx.x < kMostRanks) numbers_->copies[threadIdx.x] = 0;
    if (threadIdx.x < kBatch) numbers_->mask[threadIdx.x] = 0;
  }

  /// All threads: adds tokens 0 to end, of which `before` is the first. Ids are asked for before those that
  /// came earlier are counted.
  __device__ void count(int end, const Before& before) const {
    const int lane = lane_of_thread(), k = args_.num_topk;
    uint32_t mine = 0, mask = 0;  // copies to rank `lane`; ranks of a token
    Before now = before;
    for (int at = 32 * warp_of_thread(), first = 0; at < end;) {
      const bool is_token_end = first + kIdsInFlight >= k;
      const int next_at = is_token_end ? at + kThreads : at;
      const int next_first = is_token_end ? 0 : first + kIdsInFlight;
      Before next;
      load_ids(args_.ids + static_cast<int64_t>(next_at + lane) * k + next_first,
               next_at + lane < end ? k - next_first : 0, next.id);
#pragma unroll
      for (int i = 0; i < kIdsInFlight; ++i) {
        if (!is_expert(now.id[i])) continue;
        mask |= 1U << rank_of_(static_cast<uint32_t>(now.id[i]));
        atomicAdd(&numbers_->rows[now.id[i]], 1);
      }
      for (int r = 0; is_token_end && r < args_.team.layout.num_ranks; ++r) {
        const auto copies = static_cast<uint32_t>(__popc(__ballot_sync(~0U, (mask >> r & 1) != 0)));
        mine += lane == r ? copies : 0;
      }
      mask = is_token_end ? 0 : mask;
      now = next;
      at = next_at;
      first = next_first;
    }
    if (mine != 0) atomicAdd(&numbers_->copies[lane], mine);
  }

  /// All threads: a batch. An id that is none is refused and goes nowhere. Threads meet before the next
  /// step.
  __device__ void take(const Ids& ids, int begin, int count) const {
#pragma unroll
    for (int i = 0; i < kIdsOfThread; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kThreads;
      const int64_t id = ids.of_batch[i];
      if (at >= count * args_.num_topk) continue;
      const int token = at / args_.num_topk;
      numbers_->ids[at] = is_expert(id) ? static_cast<int32_t>(id) : -1;
      if (is_expert(id))
        atomicOr(&numbers_->mask[token], 1U << rank_of_(static_cast<uint32_t>(id)));
      else if (id != -1)
        refuse(args_.team.watch, MaskOfIds::kTopkIdx, static_cast<uint64_t>(args_.num_experts) - 1,
               static_cast<uint64_t>(id), begin + token);
    }
  }

  /// All threads: its numbers. Those of an expert's rows before one in the batch are counted, whoever
  /// looks; a rank's copies are numbered by a vote. Threads meet before the next step.
  __device__ void number(const Phase& phase, int count) const {
    const int num_ids = count * args_.num_topk, lane = lane_of_thread();
    const int num_local = args_.num_experts / args_.team.layout.num_ranks;
    for (int at = static_cast<int>(threadIdx.x); at < num_ids; at += kThreads) {
      const int id = numbers_->ids[at];
      if (id < 0) continue;
      int row = numbers_->rows[id];
      for (int first = 0; first < at; first += 4) {
        const int4 four = *reinterpret_cast<const int4*>(numbers_->ids + first);
        row += static_cast<int>(four.x == id) + static_cast<int>(first + 1 < at && four.y == id) +
               static_cast<int>(first + 2 < at && four.z == id) +
               static_cast<int>(first + 3 < at && four.w == id);
      }
      numbers_->words[at] = word_of(row, id % num_local, num_local);
    }
    for (int rank = warp_of_thread(); rank < args_.team.layout.num_ranks; rank += kWarps) {
      const bool is_going = lane < count && (numbers_->mask[lane] >> rank & 1) != 0;
      const uint32_t going = __ballot_sync(~0U, is_going);
      const auto before = static_cast<uint32_t>(__popc(going & ((1U << lane) - 1)));
      if (is_going)
        numbers_->slots[lane][rank] =
            phase.region_at(rank) + (numbers_->copies[rank] + before) * args_.slot.bytes;
    }
  }

  /// All threads: on to what is behind the batch. Threads meet before and after.
  __device__ void pass(int count) const {
    for (int at = static_cast<int>(threadIdx.x); at < count * args_.num_topk; at += kThreads)
      if (numbers_->ids[at] >= 0) atomicAdd(&numbers_->rows[numbers_->ids[at]], 1);
    if (static_cast<int>(threadIdx.x) < count)
      each_rank(numbers_->mask[threadIdx.x],
                [&](int rank) { atomicAdd(&numbers_->copies[rank], 1U); });
  }
  /// All threads: no batch. Threads meet before and after.
  __device__ void forget_batch() const {
    if (threadIdx.x < kBatch) numbers_->mask[threadIdx.x] = 0;
  }

  __device__ __forceinline__ int rank_of(int id) const {
    return rank_of_(static_cast<uint32_t>(id));
  }

 private:
  static constexpr int kIdsOfThread = kBatch * kMostTopk / kThreads;

  __device__ __forceinline__ bool is_expert(int64_t id) const {
    return id >= 0 && id < args_.num_experts;
  }
  /// The first kIdsInFlight of `left` ids, -1 behind them; two at a time where they lie so.
  __device__ __forceinline__ void load_ids(const int64_t* ids, int left,
                                           int64_t (&id)[kIdsInFlight]) const {
    const bool is_paired = (reinterpret_cast<uint64_t>(args_.ids) & 15) == 0 &&
                           args_.num_topk % 2 == 0 && left >= kIdsInFlight;
    if (is_paired) {
#pragma unroll
      for (int i = 0; i < kIdsInFlight; i += 2) {
        const longlong2 two = *reinterpret_cast<const longlong2*>(ids + i);
        id[i] = two.x, id[i + 1] = two.y;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kIdsInFlight; ++i) id[i] = i < left ? ids[i] : -1;
  }

  const LlSendArgs& args_;
  const RankOf rank_of_;
  SendMemory* const numbers_;
};

}  // namespace braid::moe::gpu
