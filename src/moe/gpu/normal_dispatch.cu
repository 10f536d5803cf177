// Normal dispatch, in the rounds of normal.cc (and so with its bytes).
//
// Begin     round 0 leaves, with an announcement to every rank in front of it; then block 0 waits for
//           all announcements and says what comes, in device memory and, where the caller waits for
//           sizes, in the host's.
// Finish    while round j + 1 leaves, by some of the blocks, j is copied to its places by the rest:
//           those of a source follow each other, so a place is a sum of counts that the flags say.
//
// Where the host waits for sizes, a finish may be enqueued before they are known, with as much room as they
// are expected to take (a trial). If more comes it leaves all as it is: counters, flags and slots are those
// of before, and a second one follows, with room.
//
// Who sends round j + 1 waits for acks of j - 1, which every rank gives when it has copied j - 1 out, for
// which it needs flags of j - 1 alone. So the oldest round always gets on, if all blocks of all ranks
// have a place on their GPUs.
#include "moe/gpu/dispatch_push.cuh"
#include "moe/gpu/dispatch_take.cuh"
#include "moe/gpu/kernel.cuh"
#include "moe/gpu/shapes.cuh"

namespace braid::moe::gpu {
namespace {

/// All threads: a round's copies into their slots, unless room does not come, and for the last block
/// how many they are.
__device__ void send_round(const DispatchArgs& args, const Roles& roles, const Phase& phase,
                           int round, BulkRows* rows) {
  __shared__ uint32_t next[kMostRanks];
  const int n = args.team.layout.num_ranks;
  const MaskOfRanks mask_of{args.is_in_rank, n};
  __syncthreads();
  if (threadIdx.x < kMostRanks) next[threadIdx.x] = 0;
  const int first = min(args.rounds.first(round), args.num_tokens);
  const Share share = roles.share_to_send(args.rounds.last(round, args.num_tokens) - first);
  count_copies(mask_of, first, first + share.begin, n, next);
  if (phase.await_room()) push_round(args, phase, first, share, mask_of, next, rows);
  __syncthreads();
  if (blockIdx.x == roles.senders - 1 && static_cast<int>(threadIdx.x) < n)
    phase.rows()[threadIdx.x] = next[threadIdx.x];
}

/// All threads of block 0: copies to each rank [N] and rows of its experts [L], in front of the slots
/// of round 0, where there is room.
__device__ void announce(const DispatchArgs& args, const Phase& phase) {
  __shared__ uint32_t totals[kMostRanks];
  const int n = args.team.layout.num_ranks, local = args.num_experts / n;
  if (threadIdx.x < kMostRanks) totals[threadIdx.x] = 0;
  count_copies(MaskOfRanks{args.is_in_rank, n}, 0, args.num_tokens, n, totals);
  if (static_cast<int>(threadIdx.x) < n) args.team.state->totals[threadIdx.x] = totals[threadIdx.x];
  const int words = static_cast<int>(args.rounds.begin / 4);
  if (!phase.await_room()) return;
  for (int i = static_cast<int>(threadIdx.x); i < n * words; i += kThreads) {
    const int rank = i / words, word = i % words;
    uint32_t said = 0;
    if (word < n)
      said = totals[word];
    else if (word < n + local && args.per_expert != nullptr)
      said = static_cast<uint32_t>(args.per_expert[rank * local + word - n]);
    reinterpret_cast<uint32_t*>(phase.region_at(rank))[word] = said;
  }
}

/// All threads of block 0, behind the flags of round 0.
__device__ void tell_incoming(const DispatchArgs& args, const Phase& phase, const Arrived& arrived,
                              int32_t* out) {
  const int n = args.team.layout.num_ranks, local = args.num_experts / n;
  const auto said = [&](int source, int word) {
    return static_cast<int32_t>(
        seen(reinterpret_cast<const uint32_t*>(phase.region_of(source)) + word));
  };
  int32_t* const prefix = out + kIncomingHeadWords + n;
  for (int i = static_cast<int>(threadIdx.x); i < n + local; i += kThreads) {
    int32_t sum = 0;
    for (int source = 0; source < n; ++source) {
      sum += said(source, i);
      if (i < n) prefix[source * n + i] = sum;
    }
    if (i >= n) prefix[n * n + i - n] = sum;
  }
  if (threadIdx.x == 0) {
    int32_t rows = 0, most = 0;
    for (int source = 0; source < n; ++source) {
      out[kIncomingHeadWords + source] = static_cast<int32_t>(arrived.total_rows[source]);
      rows += static_cast<int32_t>(arrived.total_rows[source]);
      most = max(most, static_cast<int32_t>(arrived.num_tokens[source]));
    }
    out[1] = rows;
    out[2] = most;
    out[3] = static_cast<int32_t>(phase.number());
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) *const_cast<volatile int32_t*>(out) = 1;
}

__device__ const IncomingHead& head_of(const int32_t* incoming) {
  return *reinterpret_cast<const IncomingHead*>(incoming);
}

// ---- what was not filled ----

/// All blocks: ids of -1 and weights of 0 in the rows that nothing came for.
__device__ void fill_rest(const DispatchArgs& args, int32_t num_rows) {
  const int64_t begin = static_cast<int64_t>(num_rows) * args.num_topk;
  const int64_t end = static_cast<int64_t>(args.room_rows) * args.num_topk;
  for (int64_t i = begin + blockIdx.x * kThreads + threadIdx.x; i < end;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    if (args.out_ids != nullptr) args.out_ids[i] = -1;
    if (args.out_weights != nullptr) args.out_weights[i] = 0;
  }
}

/// All threads of a block that took nothing out of a round: which rows it had is not known, so it names
/// nobody in any. What is enqueued behind a call that failed makes addresses of ids, and their memory is
/// not initialised; where another block has put a row meanwhile, either of the two is harmless.
__device__ void forget_ids(const DispatchArgs& args) {
  if (args.out_ids == nullptr) return;
  const int64_t count = static_cast<int64_t>(args.room_rows) * args.num_topk;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) args.out_ids[i] = -1;
}

inline constexpr int32_t kNumWorstTokens = 2;

}  // namespace
}  // namespace braid::moe::gpu

BRAID_MOE_KERNEL(braid_moe_dispatch_begin, DispatchArgs) {
  using namespace braid::moe::gpu;
  __shared__ StartFacts known;
  __shared__ Arrived arrived;
  const Team& team = args.team;
  StartReading(team, nullptr, args.of).keep(&known);
  BulkRows rows(args.stage_bytes);
  __syncthreads();
  const Steps sends(team.state->sent, known.sent);
  const Phase phase = next_phase(team, known);
  const braid::moe::CallShape shape =
      shape_behind(args.shape, args.of == nullptr ? nullptr : &known.of);
  if (blockIdx.x == 0) announce(args, phase);
  send_round(args, Roles::of(1, gridDim.x), phase, 0, &rows);
  if (sends.arrive(0)) {
    phase.say_kept(shape, team.state->totals, args.num_tokens);
    phase.tell();
    if (threadIdx.x == 0) {
      *args.ticket = {phase.number(), known.call + 1};
      keep_numbers(team, phase.number(), known.call + 1);
      sends.settle(1);
    }
  }
  if (blockIdx.x != 0) return;
  if (!phase.await_flags(shape, &arrived, static_cast<uint32_t>(args.rounds.tokens))) {
    if (threadIdx.x == 0) args.incoming[0] = 0;  // for what comes behind: nothing is known
    return;
  }
  tell_incoming(args, phase, arrived, args.incoming);
  if (args.host_incoming != nullptr) tell_incoming(args, phase, arrived, args.host_incoming);
}

BRAID_MOE_KERNEL(braid_moe_dispatch_finish, DispatchArgs) {
  using namespace braid::moe::gpu;
  __shared__ StartFacts known;
  __shared__ Arrived arrived;
  __shared__ Places places;
  const Team& team = args.team;
  StartReading(team, args.ticket, args.of).keep(&known);
  BulkRows rows(args.stage_bytes);
  __syncthreads();
  const uint64_t begun = known.ticket.phase, call = known.ticket.call;
  const braid::moe::CallShape shape =
      shape_behind(args.shape, args.of == nullptr ? nullptr : &known.of);
  const IncomingHead head = head_of(args.incoming);
  const int32_t num_rows = head.is_known != 0 ? head.num_rows : 0;
  const bool has_room = num_rows <= args.room_rows;
  if (!has_room && args.is_trial) return;  // of all blocks alike
  const int rounds = head.is_known != 0 ? args.rounds.count(head.most_tokens) : 1;
  // Measured between two and among four H200: 9 of 24 blocks push as much as 15 keep up with.
  const Roles roles = Roles::of(rounds, max(gridDim.x * 3 / 8, 1U));
  const Steps sends(team.state->sent, known.sent, roles.senders);
  const Steps takes(team.state->taken, known.taken, roles.takers);
  if (!has_room && threadIdx.x == 0)
    refuse(team.watch, kNumWorstTokens, static_cast<uint64_t>(num_rows),
           static_cast<uint64_t>(args.room_rows), 0);
  if (threadIdx.x == 0) {
    places.are_all_filled = true;
    int32_t next = 0;
    for (int source = 0; source < team.layout.num_ranks; ++source) {
      places.next[source] = next;
      next += head.is_known != 0 ? args.incoming[kIncomingHeadWords + source] : 0;
    }
  }
  bool is_last = false;
  for (int round = 0; round < rounds; ++round) {
    const Phase phase(team, begun + static_cast<uint64_t>(round), call, roles.pace());
    if (round + 1 < rounds && roles.sends()) {
      const Phase following(team, phase.number() + 1, call, roles.pace());
      send_round(args, roles, following, round + 1, &rows);
      if (sends.arrive(round)) {
        following.say_kept(shape, team.state->totals, args.num_tokens);
        following.tell();
      }
    }
    if (!roles.takes()) continue;
    const bool has_come =
        phase.await_flags(shape, &arrived, static_cast<uint32_t>(args.rounds.tokens));
    if (has_come && has_room)
      take_round(args, roles, phase, arrived, &places, &rows);
    else if (threadIdx.x == 0)
      places.are_all_filled = false;
    is_last = takes.arrive(round);
    if (is_last) phase.release();
  }
  rows.await_stored();
  fill_rest(args, num_rows);
  if (!places.are_all_filled) forget_ids(args);
  if (!is_last || threadIdx.x != 0) return;
  keep_numbers(team, begun + static_cast<uint64_t>(rounds) - 1, call);
  sends.settle(rounds - 1);
  takes.settle(rounds);
}
