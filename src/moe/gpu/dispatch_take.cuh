// What a round of a normal dispatch has brought, out of its slots to its places: the rows, by warps, then
// the heads, by all threads.
#pragma once

#include "moe/gpu/bulk_rows.cuh"

namespace braid::moe::gpu {

struct Places {
  int32_t next[kMostRanks];  // each source's next row
  int32_t begins[kMostRanks + 1];
  bool are_all_filled;  // so far; kept here, for there is no register left
};

/// A round on its way out of its slots: those of all sources, one behind the other.
struct RoundSlots {
  const DispatchArgs& args;
  const Phase& phase;
  const Places& places;

  struct Of {
    const std::byte* copy;
    int64_t row;
    bool is_own;  // of this rank
  };
  struct Rows {
    const std::byte *x, *side;
  };
  __device__ __forceinline__ Of operator[](int i) const {
    int source = 0;
    while (i >= places.begins[source + 1]) ++source;
    const int number = i - places.begins[source];
    return {phase.region_of(source) + args.rounds.begin +
                static_cast<uint64_t>(number) * args.rounds.copy_bytes,
            places.next[source] + number, source == args.team.rank};
  }
  /// Own ones are where the caller has them: a slot's head says which token it is.
  __device__ __forceinline__ Rows rows_of(const Of& of) const {
    if (!of.is_own) return {of.copy + args.rounds.row, of.copy + args.rounds.side};
    const uint64_t token = seen(reinterpret_cast<const uint32_t*>(of.copy));
    return {args.x + token * args.row_bytes, args.side + token * args.side_bytes};
  }
  /// False: what its flags said before was less.
  __device__ __forceinline__ bool has_room(const Of& of) const { return of.row < args.room_rows; }
};

/// All threads, one for each choice of each row: what lies before the rows.
__device__ inline void take_heads(const RoundSlots& slots, const Share& share) {
  const DispatchArgs& args = slots.args;
  const int width = args.num_topk > 0 ? args.num_topk : 1;
  const int all = (share.end - share.begin) * width;
  for (int each = static_cast<int>(threadIdx.x); each < all; each += kThreads) {
    const int choice = each % width;
    const RoundSlots::Of of = slots[share.begin + each / width];
    if (!slots.has_room(of)) continue;
    if (choice == 0 && args.source_token != nullptr)
      args.source_token[of.row] =
          static_cast<int32_t>(seen(reinterpret_cast<const uint32_t*>(of.copy)));
    if (choice >= args.num_topk) continue;
    const int64_t at = of.row * args.num_topk + choice;
    if (args.out_ids != nullptr)
      args.out_ids[at] = seen(reinterpret_cast<const int32_t*>(of.copy + args.rounds.ids) + choice);
    if (args.out_weights != nullptr && args.weights != nullptr)
      args.out_weights[at] =
          seen(reinterpret_cast<const float*>(of.copy + args.rounds.weights) + choice);
  }
}

/// By warps, through registers; the side rows alone where `are_sides_only`.
__device__ inline void take_rows(const RoundSlots& slots, const Share& share, bool are_sides_only) {
  const DispatchArgs& args = slots.args;
  for (int i = share.begin + warp_of_thread(); i < share.end; i += kWarps) {
    const RoundSlots::Of of = slots[i];
    if (!slots.has_room(of)) continue;
    const RoundSlots::Rows from = slots.rows_of(of);
    const auto row = static_cast<uint64_t>(of.row);
    if (!are_sides_only)
      copy_row(from.x, args.row_bytes,
               [&](const auto& put) { put(args.out + row * args.row_bytes); });
    if (args.side_bytes != 0)
      copy_words(args.out_side + row * args.side_bytes, from.side, args.side_bytes);
  }
}

/// By warps, through shared memory: a piece and its parts.
__device__ inline void take_rows_in_bulk(const RoundSlots& slots, const Share& share,
                                         const BulkCut& cut, BulkRows* rows) {
  const DispatchArgs& args = slots.args;
  const auto row_bytes = static_cast<uint32_t>(args.row_bytes);
  rows->behind_flags();
  rows->move(
      share.end - share.begin, cut,
      [&](const BulkCut::Piece& piece, const auto& load_part) {
        const RoundSlots::Rows from = slots.rows_of(slots[share.begin + piece.row]);
        each_part(from.x, from.side, row_bytes, piece, load_part);
      },
      [&](const BulkCut::Piece& piece, const auto& store_part) {
        const RoundSlots::Of of = slots[share.begin + piece.row];
        if (lane_of_thread() != 0 || !slots.has_room(of)) return;
        const auto row = static_cast<uint64_t>(of.row);
        each_part(args.out + row * args.row_bytes, args.out_side + row * args.side_bytes, row_bytes,
                  piece, store_part);
      });
}

/// All threads: what has arrived, to its places; `places->next` goes on.
__device__ inline void take_round(const DispatchArgs& args, const Roles& roles, const Phase& phase,
                                  const Arrived& arrived, Places* places, BulkRows* rows) {
  const int n = args.team.layout.num_ranks;
  __syncthreads();
  if (threadIdx.x == 0) {
    places->begins[0] = 0;
    for (int source = 0; source < n; ++source)
      places->begins[source + 1] = places->begins[source] + static_cast<int>(arrived.rows[source]);
  }
  __syncthreads();
  const Share share = roles.share_to_take(places->begins[n]);
  const RoundSlots slots{args, phase, *places};
  const bool goes_along = rows->are_used() && is_of_vectors(args.out_side, args.side_bytes) &&
                          is_of_vectors(args.side, args.side_bytes);
  if (rows->are_used())
    take_rows_in_bulk(slots, share, rows->cut(args.row_bytes + (goes_along ? args.side_bytes : 0)),
                      rows);
  if (!goes_along) take_rows(slots, share, rows->are_used());
  take_heads(slots, share);
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < n)
    places->next[threadIdx.x] += static_cast<int32_t>(arrived.rows[threadIdx.x]);
}

}  // namespace braid::moe::gpu
