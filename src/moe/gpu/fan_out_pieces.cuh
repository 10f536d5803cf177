// Copies that a low-latency dispatch has brought, on their way from their slots to experts' rows: where rows begin,
// and, by warps, a piece of a copy to each of the rows that its ids have.
#pragma once

#include "moe/gpu/copies.cuh"
#include "moe/gpu/numbers.cuh"
#include "moe/gpu/rows.cuh"

namespace braid::moe::gpu {

/// Copies of all sources.
class Incoming {
 public:
  struct Copy {
    int source, number;
    const std::byte* slot;
  };

  __device__ Incoming(const LlFanOutArgs& args, const Phase& phase, const Arrived& arrived)
      : regions_(phase.region_of(0)),
        region_bytes_(args.team.region_bytes),
        slot_bytes_(args.slot.bytes),
        order_(lane_of_thread() < args.team.layout.num_ranks
                   ? static_cast<int>(arrived.rows[lane_of_thread()])
                   : 0) {}
  __device__ __forceinline__ int total() const { return order_.total(); }
  __device__ __forceinline__ const std::byte* slot(int source, int number) const {
    return regions_ + static_cast<uint64_t>(source) * region_bytes_ +
           static_cast<uint64_t>(number) * slot_bytes_;
  }
  /// By a warp.
  __device__ __forceinline__ Copy operator[](int copy) const {
    const CopiesInOrder::At at = order_[copy];
    return {at.source, at.number, slot(at.source, at.number)};
  }

 private:
  const std::byte* const regions_;
  const uint64_t region_bytes_, slot_bytes_;
  const CopiesInOrder order_;
};

struct FanOutMemory {
  Arrived arrived;
  int32_t begins[kMostExperts];  // [L, N]: where rows of a source begin, in those of an expert
  int32_t counts[kMostExperts];  // [L]
};

/// How many rows experts get, of a thread's first expert on their way.
class RowCounts {
 public:
  __device__ RowCounts(const LlFanOutArgs& args, const Phase& phase)
      : args_(args),
        counts_(phase.row_counts_at(args.team.rank, 0, 0)),
        num_local_(args.num_experts / args.team.layout.num_ranks) {
    if (static_cast<int>(threadIdx.x) < num_local_)
      load(static_cast<int>(threadIdx.x), 0, first_rows_);
  }
  /// All threads: where rows begin; block 0 also tells the caller. Threads meet before the next step.
  __device__ void begin(FanOutMemory* memory) const {
    const int n = args_.team.layout.num_ranks;
    for (int e = static_cast<int>(threadIdx.x); e < num_local_; e += kThreads) {
      int32_t begin = 0;
      for (int first = 0; first < n; first += kSourcesInFlight) {
        int32_t rows[kSourcesInFlight];
        if (e >= kThreads || first > 0) {
          load(e, first, rows);
        } else {
#pragma unroll
          for (int i = 0; i < kSourcesInFlight; ++i) rows[i] = first_rows_[i];
        }
#pragma unroll
        for (int i = 0; i < kSourcesInFlight; ++i) {
          if (first + i >= n) continue;
          const int range = e * n + first + i;
          memory->begins[range] = begin;
          if (blockIdx.x == 0)
            args_.layout_range[range] = static_cast<int64_t>(begin) << 32 | rows[i];
          begin += rows[i];
        }
      }
      memory->counts[e] = begin;
      if (blockIdx.x == 0) tell(e, begin);
    }
  }

 private:
  static constexpr int kSourcesInFlight = 8;

  __device__ __forceinline__ void load(int e, int first, int32_t (&rows)[kSourcesInFlight]) const {
#pragma unroll
    for (int i = 0; i < kSourcesInFlight; ++i)
      rows[i] = first + i < args_.team.layout.num_ranks
                    ? seen(counts_ + (first + i) * num_local_ + e)
                    : 0;
  }
  __device__ void tell(int e, int32_t rows) const {
    const int most = args_.max_tokens * args_.team.layout.num_ranks;
    args_.count[e] = rows;
    if (args_.stats != nullptr) atomicAdd(args_.stats + e, rows);
    if (rows > most)
      refuse(args_.team.watch, MaskOfIds::kTopkIdx, static_cast<uint64_t>(most),
             static_cast<uint64_t>(rows), e);
  }

  const LlFanOutArgs& args_;
  const int32_t* const counts_;
  const int num_local_;
  int32_t first_rows_[kSourcesInFlight];
};

/// A piece of a copy, on its way to the rows that the copy's ids have: of its row; or, unless they go by
/// columns, of its scales, and with the first of those what is told of the row.
class FanOutPiece {
 public:
  __device__ FanOutPiece(const LlFanOutArgs& args, bool by_columns)
      : args_(args),
        row_(Cut::of(args.row_bytes)),
        scales_(Cut::of<1>(4 * static_cast<uint64_t>(args.scale_words))),
        by_columns_(by_columns),
        num_local_(static_cast<uint32_t>(args.num_experts / args.team.layout.num_ranks)),
        rows_per_expert_(args.max_tokens * args.team.layout.num_ranks) {}

  __device__ __forceinline__ int pieces() const {
    return row_.pieces + (by_columns_ ? 0 : max(scales_.pieces, 1));
  }
  __device__ __forceinline__ void load(const Incoming& in, int unit) {
    copy_ = in[unit / pieces()];
    piece_number_ = unit % pieces();
    const int k = lane_of_thread();
    word_ = k < args_.num_topk ? seen(reinterpret_cast<const int32_t*>(copy_.slot + Slot::kIds) + k)
                               : -1;
    const int of_scales = piece_number_ - row_.pieces;
    if (of_scales < 0) {
      piece_.load(copy_.slot + args_.slot.row, row_.begin(piece_number_), row_.end(piece_number_));
      if (has_table() && piece_number_ == 0) load_weights();
    } else {
      token_ = seen(reinterpret_cast<const uint32_t*>(copy_.slot));
      piece_.load(copy_.slot + args_.slot.scales, scales_.begin(of_scales), scales_.end(of_scales));
    }
  }
  __device__ __forceinline__ void store(const int32_t* begins) const {
    const int row = row_of_lane(begins);
    if (piece_number_ >= row_.pieces) return store_scales(row);
    // Where put_columns() finds it, and puts what belongs there.
    if (by_columns_ && piece_number_ == 0 && row >= 0) args_.slots[row] = copy_.number;
    if (has_table() && piece_number_ == 0) note(row);
    for (uint32_t left = __ballot_sync(~0U, row >= 0); left != 0; left &= left - 1)
      piece_.store(args_.x + static_cast<uint64_t>(row_of(row, left)) * args_.row_bytes);
  }

 private:
  __device__ __forceinline__ bool has_table() const { return args_.copies.counts != nullptr; }
  __device__ __forceinline__ void load_weights() {
    const int k = lane_of_thread();
    token_ = seen(reinterpret_cast<const uint32_t*>(copy_.slot));
    weight_ =
        k < args_.num_topk
            ? seen(reinterpret_cast<const float*>(copy_.slot + Slot::weights(args_.num_topk)) + k)
            : 0;
  }
  /// Which row came of the copy by its k-th choice, of lane k.
  __device__ __forceinline__ void note(int row) const {
    const int k = lane_of_thread();
    const int64_t at = static_cast<int64_t>(copy_.source) * args_.max_tokens + copy_.number;
    if (k == 0) args_.copies.tokens[at] = static_cast<int32_t>(token_);
    if (k >= args_.num_topk) return;
    args_.copies.places[at * args_.num_topk + k] = row;
    args_.copies.weights[at * args_.num_topk + k] = weight_;
  }
  static __device__ __forceinline__ int row_of(int row, uint32_t left) {
    return __shfl_sync(~0U, row, __ffs(static_cast<int>(left)) - 1);
  }
  /// Lane k: where the copy's k-th id has it go, or -1. What a peer says is looked at before it is
  /// used; a row too many was refused, and goes nowhere.
  __device__ __forceinline__ int row_of_lane(const int32_t* begins) const {
    if (word_ < 0) return -1;
    const auto word = static_cast<uint32_t>(word_);
    const auto id = static_cast<int>(word % num_local_);
    const int number = begins[id * args_.team.layout.num_ranks + copy_.source] +
                       static_cast<int>(word / num_local_);
    return number >= 0 && number < rows_per_expert_ ? id * rows_per_expert_ + number : -1;
  }
  /// Column-major: word w of a row lies at [w][row] of its expert.
  __device__ __forceinline__ void store_scales(int row) const {
    if (piece_number_ == row_.pieces && row >= 0) {
      args_.src_info[row] = static_cast<int32_t>(token_);
      args_.slots[row] =
          static_cast<int32_t>(token_ * static_cast<uint32_t>(args_.num_topk)) + lane_of_thread();
    }
    for (uint32_t left = __ballot_sync(~0U, row >= 0); left != 0; left &= left - 1) {
      const int to = row_of(row, left), expert = to / rows_per_expert_;
      uint32_t* const column = args_.scales +
                               static_cast<int64_t>(expert) * args_.scale_words * rows_per_expert_ +
                               to - static_cast<int64_t>(expert) * rows_per_expert_;
      piece_.each_word_of_first([&](uint32_t w, uint32_t scale) {
        if (w < static_cast<uint32_t>(args_.scale_words))
          column[static_cast<int64_t>(w) * rows_per_expert_] = scale;
      });
    }
  }

  const LlFanOutArgs& args_;
  const Cut row_, scales_;
  const bool by_columns_;
  const uint32_t num_local_;
  const int rows_per_expert_;
  Piece<> piece_;
  Incoming::Copy copy_{};
  int piece_number_ = 0;
  int32_t word_ = -1;
  uint32_t token_ = 0;
  float weight_ = 0;
};

}  // namespace braid::moe::gpu
