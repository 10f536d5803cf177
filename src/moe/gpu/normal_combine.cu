// Normal combine, in the rounds of normal.cc: rows back to their owners, who add them up in the order
// of ranks, then the biases, each sum rounded; the first row is not added to a zero. Rows of a rank's own
// tokens go through no slot: whoever adds up takes them from x, in the order that slots would have.
//
// In several rounds some of the blocks send and the rest add up. The second round leaves when all ranks have
// said in the first one that they mean this call: whoever adds up sees that, and says so in State::agreed,
// since a line of flags may be written anew as soon as its round was taken.
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
  int32_t next[kMostRanks];        // that of the round behind
  int32_t rows[kMostRanks];        // of each owner's
  int32_t begins[kMostRanks + 1];  // of those that go, among all owners'
};

/// Of an owner, in x: its first row and that behind its last one; none where nothing is known.
struct RowsOf {
  int32_t begin = 0, end = 0;
};
__device__ RowsOf rows_of(const CombineArgs& args, int owner) {
  const int32_t* const counts = args.incoming + kIncomingHeadWords;
  RowsOf out;
  for (int r = 0; r <= owner && is_known(args); ++r) {
    out.begin = out.end;
    out.end += counts[r];
  }
  return out;
}

/// By a warp: the first of rows [begin, end), whose tokens grow, with a token of `token` or more.
__device__ int32_t first_row(const int32_t* source_token, int32_t begin, int32_t end,
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
__device__ void find_rows(const CombineArgs& args, int round, int rounds, Returning* returning) {
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

__device__ void push_round(const CombineArgs& args, const Roles& roles, const Phase& phase,
                           const Returning& returning) {
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
__device__ void send_round(const CombineArgs& args, const Roles& roles, const Phase& phase,
                           int round, int rounds, Returning* returning) {
  find_rows(args, round, rounds, returning);
  if (phase.await_room()) push_round(args, roles, phase, *returning);
  const auto owner = static_cast<int>(threadIdx.x);
  if (blockIdx.x != 0 || owner >= args.team.layout.num_ranks) return;
  phase.rows()[owner] = static_cast<uint32_t>(returning->rows[owner]);
  args.team.state->totals[owner] = static_cast<uint32_t>(args.incoming[kIncomingHeadWords + owner]);
}

// ---- sums ----

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
__device__ void sum_weights(const CombineArgs& args, const RoundRows& rows, const Batch& batch,
                            int i, int64_t token) {
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

/// All threads of a block that takes, behind the flags of the first round of a call of several.
__device__ void say_agreed(const Team& team, const Roles& roles, uint64_t call) {
  if (roles.taker() == 0 && threadIdx.x == 0) device::store_relaxed(&team.state->agreed, call);
}

/// All threads of a block that only sends. Those that take have a deadline, and know for whom they wait:
/// they are to say so first.
__device__ void await_agreed(const Team& team, uint64_t call) {
  __syncthreads();
  if (threadIdx.x == 0) {
    device::Watch watch = team.watch;
    watch.timeout_ns *= 2;
    const device::Expected agreed{Wait::kBarrier, call, team.rank, 0, 0};
    (void)device::wait_gently(watch, &team.state->agreed, agreed);
  }
  __syncthreads();
}

/// Of n parts of a round n - 1 are sent and n added up, and a block sends 5/4 as fast as it adds up:
/// measured with 24 blocks, two H200 took 283 us with 7 that send and 289 with 8, four 608 with 9 and 628
/// with 10.
__device__ __forceinline__ uint32_t blocks_that_send(int num_ranks) {
  const auto n = static_cast<uint32_t>(num_ranks), parts = 9 * n - 4;
  return max((gridDim.x * 4 * (n - 1) + parts / 2) / parts, 1U);
}

template <typename Type>
__device__ void combine(const CombineArgs& args) {
  __shared__ StartFacts known;
  __shared__ Arrived arrived;
  __shared__ Returning returning;
  const Team& team = args.team;
  StartReading(team, nullptr, args.of).keep(&known);
  __syncthreads();
  const uint64_t begun = known.phase + 1, call = known.call + 1;
  const CallShape shape = shape_behind(args.shape, args.of == nullptr ? nullptr : &known.of);
  const int rounds = is_known(args) ? args.rounds.count(args.incoming[2]) : 1;
  const Roles roles = Roles::of(rounds, blocks_that_send(team.layout.num_ranks));
  const Steps sent(team.state->sent, known.sent, roles.senders);
  const Steps taken(team.state->taken, known.taken, roles.takers);
  const auto most_rows = static_cast<uint32_t>(args.rounds.tokens);
  const auto phase_of_round = [&](int round) {
    return Phase(team, begun + static_cast<uint64_t>(round), call, roles.pace());
  };
  auto own_first = static_cast<uint32_t>(rows_of(args, team.rank).begin);
  bool is_last = false;
  for (int step = 0; step <= rounds; ++step) {
    const bool takes = roles.takes() && step > 0, sends = roles.sends() && step < rounds;
    const Phase phase = phase_of_round(step - 1);
    bool has_come = false;
    // The first round is agreed on before the second one leaves.
    if (takes && step == 1 && (has_come = phase.await_flags(shape, &arrived, most_rows)))
      say_agreed(team, roles, call);
    if (sends && step == 1 && !takes) await_agreed(team, call);
    if (sends) {
      const Phase following = phase_of_round(step);
      send_round(args, roles, following, step, rounds, &returning);
      if (sent.arrive(step)) {
        following.say_kept(shape, team.state->totals, args.num_tokens);
        following.tell();
      }
    }
    if (!takes) continue;
    if (step > 1) has_come = phase.await_flags(shape, &arrived, most_rows);
    if (has_come) {
      const uint32_t num_own = arrived.rows[team.rank];
      sum_round<Type>(args, roles, {args, phase, own_first, num_own}, step - 1, arrived);
      own_first += num_own;
    }
    is_last = taken.arrive(step - 1);
    if (is_last) phase.release();
  }
  if (!is_last || threadIdx.x != 0) return;
  keep_numbers(team, begun + static_cast<uint64_t>(rounds) - 1, call);
  sent.settle(rounds);
  taken.settle(rounds);
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
