// Rows of a normal combine on their way back to their owners: which they are in a round, who of this
// rank's blocks sends which of them, and how.
#pragma once

#include "moe/gpu/bulk_rows.cuh"

namespace braid::moe::gpu {

/// False behind a dispatch that ended in vain: its results hold anything.
__device__ __forceinline__ bool is_known(const CombineArgs& args) { return args.incoming[0] == 1; }

/// Rows of a round, and what of them one block sends: of each owner's rows every so many-th, owner by
/// owner from another one on than its neighbours and than the same block of other ranks. So no owner has
/// all senders at a time, and every block has as much for the links as for this GPU's own memory, which
/// takes it sooner.
struct RoundRows {
  int32_t first[kMostRanks];       // of each owner's, in x
  int32_t next[kMostRanks];        // that of the round behind
  int32_t rows[kMostRanks];        // of each owner
  int32_t begins[kMostRanks + 1];  // of the block's own, in its order of owners
};

/// Which owner a block comes to as its `turn`th, and the turn of an owner.
__device__ __forceinline__ int owner_of(const Team& team, int turn) {
  return (team.rank + static_cast<int>(blockIdx.x) + turn) % team.layout.num_ranks;
}
__device__ __forceinline__ int turn_of(const Team& team, int owner) {
  const int n = team.layout.num_ranks;
  return (owner + n - owner_of(team, 0)) % n;
}

/// Rows of an owner are dealt to the blocks that send one by one, those of the next owner from another
/// block on, so that few rows are not one block's alone. This block's place in that order.
__device__ __forceinline__ int place_of(const Team& team, const Roles& roles, int owner) {
  const uint32_t begin =
      static_cast<uint32_t>(owner) * roles.senders / static_cast<uint32_t>(team.layout.num_ranks);
  return static_cast<int>((blockIdx.x + begin) % roles.senders);
}

/// By a warp: the first of rows [begin, end), whose tokens grow, with a token of `token` or more.
__device__ inline int32_t first_row(const int32_t* source_token, int32_t begin, int32_t end,
                                    int32_t token) {
  while (begin < end) {
    const int32_t step = (end - begin + 31) / 32, at = begin + lane_of_thread() * step;
    const bool is_before = at < end && source_token[at] < token;
    const int32_t before = __popc(__ballot_sync(~0U, is_before));
    if (before == 0) break;
    end = min(end, begin + before * step);
    begin += (before - 1) * step + 1;
  }
  return begin;
}

/// All threads, round after round: a warp for each owner.
__device__ inline void find_rows(const CombineArgs& args, const Roles& roles, int round, int rounds,
                                 RoundRows* rows_of_round) {
  static_assert(kMostRanks <= kWarps);
  const int n = args.team.layout.num_ranks, owner = warp_of_thread();
  const int32_t* const rows_of = args.incoming + kIncomingHeadWords;
  __syncthreads();
  if (owner < n) {
    int32_t begin = 0, end = 0;
    for (int r = 0; r <= owner && is_known(args); ++r) {
      begin = end;
      end += rows_of[r];
    }
    if (round > 0) begin = rows_of_round->next[owner];
    if (rounds > 1) end = first_row(args.source_token, begin, end, args.rounds.first(round + 1));
    __syncwarp();
    if (lane_of_thread() == 0) {
      const int32_t rows = min(end - begin, args.rounds.tokens);  // what has room, always
      rows_of_round->first[owner] = begin;
      rows_of_round->next[owner] = end;
      rows_of_round->rows[owner] = rows;
      const int senders = static_cast<int>(roles.senders);
      rows_of_round->begins[turn_of(args.team, owner) + 1] =
          (rows + senders - 1 - place_of(args.team, roles, owner)) / senders;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    rows_of_round->begins[0] = 0;
    for (int turn = 0; turn < n; ++turn)
      rows_of_round->begins[turn + 1] += rows_of_round->begins[turn];
  }
  __syncthreads();
}

/// A block's rows of a round on their way to their owners.
struct RoundPush {
  const CombineArgs& args;
  const Roles& roles;
  const Phase& phase;
  const RoundRows& rows_of_round;

  struct Of {
    int64_t row;
    std::byte* copy;
  };
  __device__ __forceinline__ int count() const {
    return rows_of_round.begins[args.team.layout.num_ranks];
  }
  __device__ __forceinline__ Of operator[](int i) const {
    int turn = 0;
    while (i >= rows_of_round.begins[turn + 1]) ++turn;
    const int owner = owner_of(args.team, turn);
    const int number = place_of(args.team, roles, owner) +
                       (i - rows_of_round.begins[turn]) * static_cast<int>(roles.senders);
    return {rows_of_round.first[owner] + number,
            phase.region_at(owner) + static_cast<uint64_t>(number) * args.rounds.copy_bytes};
  }
};

/// All threads, one for each weight.
__device__ inline void push_weights(const RoundPush& push) {
  const CombineArgs& args = push.args;
  const int k = args.num_topk, all = push.count() * k;
  for (int each = static_cast<int>(threadIdx.x); each < all; each += kThreads) {
    const RoundPush::Of of = push[each / k];
    reinterpret_cast<float*>(of.copy)[each % k] = args.weights[of.row * k + each % k];
  }
}

/// By warps, through registers.
__device__ inline void push_rows(const RoundPush& push) {
  const CombineArgs& args = push.args;
  for (int i = warp_of_thread(); i < push.count(); i += kWarps) {
    const RoundPush::Of of = push[i];
    copy_row(args.x + static_cast<uint64_t>(of.row) * args.row_bytes, args.row_bytes,
             [&](const auto& put) { put(of.copy + args.rounds.row); });
  }
}

/// By warps, through shared memory.
__device__ inline void push_rows_in_bulk(const RoundPush& push, BulkRows* rows) {
  const CombineArgs& args = push.args;
  const BulkCut cut = rows->cut(args.row_bytes);
  const auto begin = [&](int unit) { return cut.begin(unit % cut.pieces); };
  const auto size = [&](int unit) { return cut.end(unit % cut.pieces) - begin(unit); };
  rows->move(
      push.count() * cut.pieces, size,
      [&](int unit, const auto& load_part) {
        const RoundPush::Of of = push[unit / cut.pieces];
        load_part(args.x + static_cast<uint64_t>(of.row) * args.row_bytes + begin(unit), 0U,
                  size(unit));
      },
      [&](int unit, const auto& store_part) {
        if (lane_of_thread() != 0) return;
        const RoundPush::Of of = push[unit / cut.pieces];
        store_part(of.copy + args.rounds.row + begin(unit), 0U, size(unit));
      });
}

__device__ inline void push_round(const RoundPush& push, BulkRows* rows) {
  rows->behind_flags();
  if (rows->are_used())
    push_rows_in_bulk(push, rows);
  else
    push_rows(push);
  if (push.args.weights != nullptr) push_weights(push);
  rows->await_stored();
}

}  // namespace braid::moe::gpu
