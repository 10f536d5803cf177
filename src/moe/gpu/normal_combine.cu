// Normal combine, in the rounds of normal.cc: rows back to their owners, who add them up in the order
// of ranks, then the biases, each sum rounded; the first row is not added to a zero.
#include "moe/gpu/copies.cuh"
#include "moe/gpu/kernel.cuh"
#include "moe/gpu/row_sum.cuh"
#include "moe/gpu/shapes.cuh"

namespace braid::moe::gpu {
namespace {

/// False behind a dispatch that ended in vain: its results hold anything.
__device__ __forceinline__ bool is_known(const CombineArgs& args) { return args.incoming[0] == 1; }

/// Rows of a round, owner by owner.
struct Returning {
  int32_t first[kMostRanks];       // of each owner's, in x
  int32_t begins[kMostRanks + 1];  // of them among all owners'
};

/// The first of rows [begin, end), whose tokens grow, with a token of `token` or more.
__device__ int32_t first_row(const int32_t* source_token, int32_t begin, int32_t end,
                             int32_t token) {
  while (begin < end) {
    const int32_t middle = begin + (end - begin) / 2;
    if (source_token[middle] < token)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

__device__ void find_rows(const CombineArgs& args, int round, int rounds, Returning* returning) {
  const int n = args.team.layout.num_ranks;
  const auto owner = static_cast<int>(threadIdx.x);
  const int32_t* const rows_of = args.incoming + kIncomingHeadWords;
  __syncthreads();
  if (owner < n) {
    int32_t begin = 0, end = 0;
    for (int r = 0; r <= owner && is_known(args); ++r) {
      begin = end;
      end += rows_of[r];
    }
    if (rounds > 1) {
      begin = first_row(args.source_token, begin, end, args.rounds.first(round));
      end = first_row(args.source_token, begin, end, args.rounds.first(round + 1));
    }
    returning->first[owner] = begin;
    returning->begins[owner + 1] = min(end - begin, args.rounds.tokens);  // what has room, always
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    returning->begins[0] = 0;
    for (int r = 0; r < n; ++r) returning->begins[r + 1] += returning->begins[r];
  }
  __syncthreads();
}

__device__ void push_round(const CombineArgs& args, const Phase& phase,
                           const Returning& returning) {
  const int n = args.team.layout.num_ranks, k = args.num_topk, lane = lane_of_thread();
  const Share share = Share::of(returning.begins[n]);
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
__device__ void send_round(const CombineArgs& args, const Phase& phase, int round, int rounds,
                           Returning* returning) {
  find_rows(args, round, rounds, returning);
  if (phase.await_room()) push_round(args, phase, *returning);
  const auto owner = static_cast<int>(threadIdx.x);
  if (blockIdx.x != 0 || owner >= args.team.layout.num_ranks) return;
  phase.rows()[owner] =
      static_cast<uint32_t>(returning->begins[owner + 1] - returning->begins[owner]);
  args.team.state->totals[owner] = static_cast<uint32_t>(args.incoming[kIncomingHeadWords + owner]);
}

// ---- sums ----

inline constexpr int kRowsInFlight = 8;

/// By a warp: one vector of every lane of a token.
template <typename Type>
__device__ void sum_vectors(const CombineArgs& args, const Phase& phase, const Batch& batch, int i,
                            int64_t token, int vector) {
  const uint64_t offset = static_cast<uint64_t>(vector) * kVectorBytes;
  const int n = args.team.layout.num_ranks;
  const uint32_t mask = batch.mask[i];
  const uint64_t own = static_cast<uint64_t>(token) * args.row_bytes + offset;
  RowSum<Type> sum;
  for (int first = 0; first < n; first += kRowsInFlight) {
    uint4 v[kRowsInFlight];
#pragma unroll
    for (int r = 0; r < kRowsInFlight; ++r)
      if ((mask >> (first + r) & 1) != 0)
        v[r] = load_vector(phase.region_of(first + r) +
                           batch.slot[i][first + r] * args.rounds.copy_bytes + args.rounds.row +
                           offset);
#pragma unroll
    for (int r = 0; r < kRowsInFlight; ++r)
      if ((mask >> (first + r) & 1) != 0) sum.add(v[r]);
  }
  for (const std::byte* bias : args.biases)
    if (bias != nullptr) sum.add(load_vector(bias + own));
  store_vector(args.out + own, sum.rounded());
}

/// By a warp: lane k has a token's k-th weight.
__device__ void sum_weights(const CombineArgs& args, const Phase& phase, const Batch& batch, int i,
                            int64_t token) {
  const int lane = lane_of_thread();
  if (lane >= args.num_topk) return;
  float sum = 0;
  each_rank(batch.mask[i], [&](int rank) {
    const std::byte* const copy =
        phase.region_of(rank) + batch.slot[i][rank] * args.rounds.copy_bytes;
    sum = __fadd_rn(sum, seen(reinterpret_cast<const float*>(copy) + lane));
  });
  args.out_weights[token * args.num_topk + lane] = sum;
}

/// All threads: the sums of a round's tokens. What ranks sent back must be what they got.
template <typename Type>
__device__ void sum_round(const CombineArgs& args, const Phase& phase, int round,
                          const Arrived& arrived) {
  __shared__ uint32_t next[kMostRanks];
  __shared__ Batch batch;
  const int n = args.team.layout.num_ranks;
  const MaskOfRanks mask_of{args.is_in_rank, n};
  const int first = min(args.rounds.first(round), args.num_tokens);
  const Share share = Share::of(args.rounds.last(round, args.num_tokens) - first);
  const auto vectors = static_cast<int>(args.row_bytes / kVectorBytes);
  const int pieces = (vectors + 31) / 32;
  __syncthreads();
  if (threadIdx.x < kMostRanks) next[threadIdx.x] = 0;
  count_copies(mask_of, first, first + share.begin, n, next);
  for (int at = first + share.begin; at < first + share.end; at += kBatch) {
    const int count = min(kBatch, first + share.end - at);
    number_batch(mask_of, at, count, n, next, &batch);
    for (int unit = warp_of_thread(); unit < count * pieces; unit += kWarps) {
      const int i = unit / pieces, vector = unit % pieces * 32 + lane_of_thread();
      if (vector < vectors) sum_vectors<Type>(args, phase, batch, i, at + i, vector);
      if (unit % pieces == 0 && args.out_weights != nullptr)
        sum_weights(args, phase, batch, i, at + i);
    }
  }
  __syncthreads();
  const auto rank = static_cast<int>(threadIdx.x);
  if (blockIdx.x == gridDim.x - 1 && rank < n && arrived.rows[rank] != next[rank])
    device::give_up(args.team.watch,
                    {Wait::kAgreement, next[rank], rank, 0, 1 + sizeof(CallShape) / 4},
                    arrived.rows[rank], false);
}

template <typename Type>
__device__ void combine(const CombineArgs& args) {
  __shared__ StartFacts known;
  __shared__ Arrived arrived;
  __shared__ Returning returning;
  const Team& team = args.team;
  StartReading(team, nullptr, args.of).keep(&known);
  __syncthreads();
  const Steps sends(team.state->sent, known.sent), takes(team.state->taken, known.taken);
  const uint64_t begun = known.phase + 1, call = known.call + 1;
  const CallShape shape = shape_behind(args.shape, args.of == nullptr ? nullptr : &known.of);
  const int rounds = is_known(args) ? args.rounds.count(args.incoming[2]) : 1;
  const auto most_rows = static_cast<uint32_t>(args.rounds.tokens);
  const auto send = [&](int round) {
    const Phase phase(team, begun + static_cast<uint64_t>(round), call);
    send_round(args, phase, round, rounds, &returning);
    if (!sends.arrive(round)) return;
    phase.say_kept(shape, team.state->totals, args.num_tokens);
    phase.tell();
  };
  send(0);
  bool is_last = false;
  for (int round = 0; round < rounds; ++round) {
    const Phase phase(team, begun + static_cast<uint64_t>(round), call);
    // The first round is agreed on before the second one leaves.
    bool has_come = round > 0 || phase.await_flags(shape, &arrived, most_rows);
    if (round + 1 < rounds) send(round + 1);
    if (round > 0) has_come = phase.await_flags(shape, &arrived, most_rows);
    if (has_come) sum_round<Type>(args, phase, round, arrived);
    is_last = takes.arrive(round);
    if (is_last) phase.release();
  }
  if (!is_last || threadIdx.x != 0) return;
  keep_numbers(team, begun + static_cast<uint64_t>(rounds) - 1, call);
  sends.settle(rounds);
  takes.settle(rounds);
}

}  // namespace
}  // namespace braid::moe::gpu

BRAID_MOE_KERNEL(braid_moe_combine_bf16, CombineArgs) {
  braid::moe::gpu::combine<braid::moe::gpu::Bf16>(args);
}
BRAID_MOE_KERNEL(braid_moe_combine_fp16, CombineArgs) {
  braid::moe::gpu::combine<braid::moe::gpu::Fp16>(args);
}
BRAID_MOE_KERNEL(braid_moe_combine_fp32, CombineArgs) {
  braid::moe::gpu::combine<braid::moe::gpu::Fp32>(args);
}
