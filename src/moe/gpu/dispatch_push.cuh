// Tokens of a normal dispatch on their way into their slots: a batch is numbered, then go the heads, by all
// threads, and the rows, by warps. Of what stays on this rank only heads go: it takes the rows from where
// the caller has them.
#pragma once

#include "moe/gpu/bulk_rows.cuh"
#include "moe/gpu/copies.cuh"

namespace braid::moe::gpu {

/// Tokens of a batch on their way into their slots.
struct BatchPush {
  const DispatchArgs& args;
  const Phase& phase;
  const Batch& batch;
  int at, count;  // the batch's tokens

  __device__ __forceinline__ std::byte* copy(int i, int rank) const {
    return phase.region_at(rank) + args.rounds.begin + batch.slot[i][rank] * args.rounds.copy_bytes;
  }
  __device__ __forceinline__ const std::byte* row(int i) const {
    return args.x + static_cast<uint64_t>(at + i) * args.row_bytes;
  }
  __device__ __forceinline__ const std::byte* side(int i) const {
    return args.side + static_cast<uint64_t>(at + i) * args.side_bytes;
  }
  /// Whom a row goes to.
  __device__ __forceinline__ uint32_t others(int i) const {
    return batch.mask[i] & ~(1U << args.team.rank);
  }
};

/// All threads, one for each choice of each token: what lies before the rows.
__device__ inline void push_heads(const BatchPush& push) {
  const DispatchArgs& args = push.args;
  const RankOf rank_of(max(args.num_experts, 1), args.team.layout.num_ranks);
  const int width = args.ids != nullptr ? args.num_topk : 1;
  const int local = args.num_experts / args.team.layout.num_ranks;
  for (int each = static_cast<int>(threadIdx.x); each < push.count * width; each += kThreads) {
    const int i = each / width, choice = each % width, token = push.at + i;
    const int64_t at = static_cast<int64_t>(token) * width + choice;
    const int64_t id = args.ids != nullptr ? args.ids[at] : -1;
    const float weight = args.ids != nullptr && args.weights != nullptr ? args.weights[at] : 0.0F;
    const bool is_id = id >= 0 && id < args.num_experts;
    const int meant = is_id ? static_cast<int>(rank_of(static_cast<uint32_t>(id))) : -1;
    each_rank(push.batch.mask[i], [&](int rank) {
      std::byte* const copy = push.copy(i, rank);
      if (choice == 0) *reinterpret_cast<uint32_t*>(copy) = static_cast<uint32_t>(token);
      if (args.ids == nullptr) return;
      reinterpret_cast<int32_t*>(copy + args.rounds.ids)[choice] =
          meant == rank ? static_cast<int32_t>(id) - rank * local : -1;
      if (args.weights != nullptr)
        reinterpret_cast<float*>(copy + args.rounds.weights)[choice] =
            meant == rank ? weight : 0.0F;
    });
  }
}

/// By warps: the side rows, where they do not go along with the rows.
__device__ inline void push_sides(const BatchPush& push) {
  const DispatchArgs& args = push.args;
  for (int i = warp_of_thread(); i < push.count; i += kWarps)
    each_rank(push.others(i), [&](int rank) {
      copy_words(push.copy(i, rank) + args.rounds.side, push.side(i), args.side_bytes);
    });
}

/// By warps, through registers.
__device__ inline void push_rows(const BatchPush& push) {
  const DispatchArgs& args = push.args;
  const auto vectors = static_cast<uint32_t>(args.row_bytes / kVectorBytes);
  constexpr uint32_t kPiece = 32 * kInFlight;
  const int pieces = static_cast<int>((vectors + kPiece - 1) / kPiece);
  for (int unit = warp_of_thread(); unit < push.count * pieces; unit += kWarps) {
    const int i = unit / pieces;
    const auto begin = static_cast<uint32_t>(unit % pieces) * kPiece;
    copy_vectors(push.row(i), begin, min(vectors, begin + kPiece), [&](const auto& put) {
      each_rank(push.others(i), [&](int rank) { put(push.copy(i, rank) + args.rounds.row); });
    });
  }
}

/// By warps, through shared memory: a lane for each rank. `cut` is of a row and what goes along.
__device__ inline void push_rows_in_bulk(const BatchPush& push, const BulkCut& cut,
                                         BulkRows* rows) {
  const DispatchArgs& args = push.args;
  rows->move(
      push.count, cut,
      [&](const BulkCut::Piece& piece, const auto& load_part) {
        each_part(push.row(piece.row), push.side(piece.row), static_cast<uint32_t>(args.row_bytes),
                  piece, load_part);
      },
      [&](const BulkCut::Piece& piece, const auto& store_part) {
        const int rank = lane_of_thread();
        if ((push.others(piece.row) >> rank & 1) == 0) return;
        store_part(push.copy(piece.row, rank) + args.rounds.row + piece.begin, 0,
                   piece.end - piece.begin);
      });
}

/// By all threads: a share of the tokens behind `first`, of which `next` has each rank's next slot.
__device__ inline void push_round(const DispatchArgs& args, const Phase& phase, int first,
                                  const Share& share, const MaskOfRanks& mask_of, uint32_t* next,
                                  BulkRows* rows) {
  __shared__ Batch batch;
  const int n = args.team.layout.num_ranks;
  const bool goes_along = rows->are_used() && is_of_vectors(args.side, args.side_bytes);
  const BulkCut cut = rows->cut(args.row_bytes + (goes_along ? args.side_bytes : 0));
  rows->behind_flags();
  for (int at = first + share.begin; at < first + share.end; at += kBatch) {
    const BatchPush push{args, phase, batch, at, min(kBatch, first + share.end - at)};
    number_batch(mask_of, at, push.count, n, next, &batch);
    push_heads(push);
    if (n == 1) continue;
    if (args.side_bytes != 0 && !goes_along) push_sides(push);
    if (rows->are_used())
      push_rows_in_bulk(push, cut, rows);
    else
      push_rows(push);
  }
  rows->await_stored();
}

}  // namespace braid::moe::gpu
