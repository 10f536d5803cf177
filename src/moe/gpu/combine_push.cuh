// Rows of a normal combine on their way to their owners: which of a round's are whose, and, by warps, each into its
// slot. Rows of a rank's own tokens stay where they are.
#pragma once

#include "moe/gpu/rows.cuh"

namespace braid::moe::gpu {

/// False behind a dispatch that ended in vain: its results hold anything.
__device__ __forceinline__ bool is_known(const CombineArgs& args) { return args.incoming[0] == 1; }

/// Rows of a round, owner by owner.
struct RowsByRank {
  int32_t first[kMostRanks];       // of each owner's, in x
  int32_t next[kMostRanks];        // that of the round behind
  int32_t rows[kMostRanks];        // of each owner's
  int32_t begins[kMostRanks + 1];  // of those that go, among all owners'
};

/// Of an owner, in x: its first row and that behind its last one; none where nothing is known.
struct RowsOf {
  int32_t begin = 0, end = 0;
};
__device__ inline RowsOf rows_of(const CombineArgs& args, int owner) {
  const int32_t* const counts = args.incoming + kIncomingHeadWords;
  RowsOf out;
  for (int r = 0; r <= owner && is_known(args); ++r) {
    out.begin = out.end;
    out.end += counts[r];
  }
  return out;
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
__device__ inline void find_rows(const CombineArgs& args, int round, int rounds,
                                 RowsByRank* returning) {
  static_assert(kMostRanks <= kWarps);
  const int n = args.team.layout.num_ranks, owner = warp_of_thread();
  __syncthreads();
  if (owner < n) {
    auto [begin, end] = rows_of(args, owner);
    if (round > 0) begin = returning->next[owner];
    if (rounds > 1) end = first_row(args.source_token, begin, end, args.rounds.first(round + 1));
    __syncwarp();
    if (lane_of_thread() == 0) {
      returning->first[owner] = begin;
      returning->next[owner] = end;
      const int32_t rows = min(end - begin, args.rounds.tokens);  // what has room, always
      returning->rows[owner] = rows;
      returning->begins[owner + 1] = owner == args.team.rank ? 0 : rows;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    returning->begins[0] = 0;
    for (int r = 0; r < n; ++r) returning->begins[r + 1] += returning->begins[r];
  }
  __syncthreads();
}

__device__ inline void push_round(const CombineArgs& args, const Roles& roles, const Phase& phase,
                                  const RowsByRank& returning) {
  const int n = args.team.layout.num_ranks, k = args.num_topk, lane = lane_of_thread();
  const Share share = roles.share_to_send(returning.begins[n]);
  for (int i = share.begin + warp_of_thread(); i < share.end; i += kWarps) {
    int owner = 0;
    while (i >= returning.begins[owner + 1]) ++owner;
    const int number = i - returning.begins[owner];
    const int64_t row = returning.first[owner] + number;
    std::byte* const copy =
        phase.region_at(owner) + static_cast<uint64_t>(number) * args.rounds.copy_bytes;
    copy_row(args.x + static_cast<uint64_t>(row) * args.row_bytes, args.row_bytes,
             [&](const auto& put) { put(copy + args.rounds.row); });
    if (args.weights != nullptr && lane < k)
      reinterpret_cast<float*>(copy)[lane] = args.weights[row * k + lane];
  }
}

/// All threads: a round's rows to their owners, unless room does not come.
__device__ inline void send_round(const CombineArgs& args, const Roles& roles, const Phase& phase,
                                  int round, int rounds, RowsByRank* returning) {
  find_rows(args, round, rounds, returning);
  if (phase.await_room()) push_round(args, roles, phase, *returning);
  const auto owner = static_cast<int>(threadIdx.x);
  if (blockIdx.x != 0 || owner >= args.team.layout.num_ranks) return;
  phase.rows()[owner] = static_cast<uint32_t>(returning->rows[owner]);
  args.team.state->totals[owner] = static_cast<uint32_t>(args.incoming[kIncomingHeadWords + owner]);
}

}  // namespace braid::moe::gpu
