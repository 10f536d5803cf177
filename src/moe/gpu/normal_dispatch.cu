// Normal dispatch, in the rounds of normal.cc (and so with its bytes).
//
// Begin     round 0 leaves, with an announcement to every rank in front of it; then block 0 waits for
//           all announcements and says what comes, in device memory and, where the caller waits for
//           sizes, in the host's.
// Finish    while round j + 1 leaves, by half of the blocks, j is copied to its places by the rest:
//           those of a source follow each other, so a place is a sum of counts that the flags say.
//
// Who sends round j + 1 waits for acks of j - 1, which every rank gives when it has copied j - 1 out, for
// which it needs flags of j - 1 alone. So the oldest round always gets on, if all blocks of all ranks
// have a place on their GPUs.
#include "moe/gpu/copies.cuh"
#include "moe/gpu/kernel.cuh"
#include "moe/gpu/rows.cuh"
#include "moe/gpu/shapes.cuh"

namespace braid::moe::gpu {
namespace {

/// By a warp: what lies before the row, of a token in its slot at `rank`.
__device__ void put_head(const DispatchArgs& args, int token, int rank, std::byte* copy) {
  const int lane = lane_of_thread(), k = args.num_topk;
  if (lane == 0) *reinterpret_cast<uint32_t*>(copy) = static_cast<uint32_t>(token);
  if (args.ids == nullptr || lane >= k) return;
  const int64_t at = static_cast<int64_t>(token) * k + lane;
  const int64_t id = args.ids[at];
  const int local = args.num_experts / args.team.layout.num_ranks;
  const bool is_there = id >= 0 && id < args.num_experts && static_cast<int>(id) / local == rank;
  reinterpret_cast<int32_t*>(copy + args.rounds.ids)[lane] =
      is_there ? static_cast<int32_t>(id) % local : -1;
  if (args.weights != nullptr)
    reinterpret_cast<float*>(copy + args.rounds.weights)[lane] = is_there ? args.weights[at] : 0.0F;
}

__device__ void push_round(const DispatchArgs& args, const Phase& phase, int first,
                           const Share& share, const MaskOfRanks& mask_of, uint32_t* next) {
  __shared__ Batch batch;
  const int n = args.team.layout.num_ranks;
  const auto vectors = static_cast<uint32_t>(args.row_bytes / kVectorBytes);
  constexpr uint32_t kPiece = 32 * kInFlight;
  const int pieces = static_cast<int>((vectors + kPiece - 1) / kPiece);
  for (int at = first + share.begin; at < first + share.end; at += kBatch) {
    const int count = min(kBatch, first + share.end - at);
    number_batch(mask_of, at, count, n, next, &batch);
    for (int unit = warp_of_thread(); unit < count * pieces; unit += kWarps) {
      const int i = unit / pieces, token = at + i;
      const auto begin = static_cast<uint32_t>(unit % pieces) * kPiece;
      const auto each_copy = [&](const auto& put) {
        each_rank(batch.mask[i], [&](int rank) {
          put(rank, phase.region_at(rank) + args.rounds.begin +
                        batch.slot[i][rank] * args.rounds.copy_bytes);
        });
      };
      copy_vectors(args.x + static_cast<uint64_t>(token) * args.row_bytes, begin,
                   min(vectors, begin + kPiece), [&](const auto& put) {
                     each_copy([&](int, std::byte* copy) { put(copy + args.rounds.row); });
                   });
      if (begin != 0) continue;
      each_copy([&](int rank, std::byte* copy) {
        put_head(args, token, rank, copy);
        if (args.side_bytes != 0)
          copy_words(copy + args.rounds.side,
                     args.side + static_cast<uint64_t>(token) * args.side_bytes, args.side_bytes);
      });
    }
  }
}

/// All threads: a round's copies into their slots, unless room does not come, and for the last block
/// how many they are.
__device__ void send_round(const DispatchArgs& args, const Roles& roles, const Phase& phase,
                           int round) {
  __shared__ uint32_t next[kMostRanks];
  const int n = args.team.layout.num_ranks;
  const MaskOfRanks mask_of{args.is_in_rank, n};
  __syncthreads();
  if (threadIdx.x < kMostRanks) next[threadIdx.x] = 0;
  const int first = min(args.rounds.first(round), args.num_tokens);
  const Share share = roles.share_to_send(args.rounds.last(round, args.num_tokens) - first);
  count_copies(mask_of, first, first + share.begin, n, next);
  if (phase.await_room()) push_round(args, phase, first, share, mask_of, next);
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

// ---- taking out ----

struct Places {
  int32_t next[kMostRanks];  // each source's next row
  int32_t begins[kMostRanks + 1];
  bool are_all_filled;  // so far; kept here, for there is no register left
};

/// By a warp.
__device__ void take_copy(const DispatchArgs& args, const std::byte* copy, int64_t row) {
  const int lane = lane_of_thread(), k = args.num_topk;
  copy_row(copy + args.rounds.row, args.row_bytes,
           [&](const auto& put) { put(args.out + static_cast<uint64_t>(row) * args.row_bytes); });
  if (args.side_bytes != 0)
    copy_words(args.out_side + static_cast<uint64_t>(row) * args.side_bytes,
               copy + args.rounds.side, args.side_bytes);
  if (lane == 0 && args.source_token != nullptr)
    args.source_token[row] = static_cast<int32_t>(seen(reinterpret_cast<const uint32_t*>(copy)));
  if (lane >= k) return;
  if (args.out_ids != nullptr)
    args.out_ids[row * k + lane] =
        seen(reinterpret_cast<const int32_t*>(copy + args.rounds.ids) + lane);
  if (args.out_weights != nullptr && args.weights != nullptr)
    args.out_weights[row * k + lane] =
        seen(reinterpret_cast<const float*>(copy + args.rounds.weights) + lane);
}

/// All threads: what has arrived, to its places; `places->next` goes on.
__device__ void take_round(const DispatchArgs& args, const Roles& roles, const Phase& phase,
                           const Arrived& arrived, Places* places) {
  const int n = args.team.layout.num_ranks;
  __syncthreads();
  if (threadIdx.x == 0) {
    places->begins[0] = 0;
    for (int source = 0; source < n; ++source)
      places->begins[source + 1] = places->begins[source] + static_cast<int>(arrived.rows[source]);
  }
  __syncthreads();
  const Share share = roles.share_to_take(places->begins[n]);
  for (int i = share.begin + warp_of_thread(); i < share.end; i += kWarps) {
    int source = 0;
    while (i >= places->begins[source + 1]) ++source;
    const int number = i - places->begins[source];
    const int64_t row = places->next[source] + number;
    if (row >= args.room_rows) continue;  // what its flags said before was less
    take_copy(args,
              phase.region_of(source) + args.rounds.begin +
                  static_cast<uint64_t>(number) * args.rounds.copy_bytes,
              row);
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < n)
    places->next[threadIdx.x] += static_cast<int32_t>(arrived.rows[threadIdx.x]);
}

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
  __syncthreads();
  const Steps sends(team.state->sent, known.sent);
  const Phase phase = next_phase(team, known);
  const braid::moe::CallShape shape =
      shape_behind(args.shape, args.of == nullptr ? nullptr : &known.of);
  if (blockIdx.x == 0) announce(args, phase);
  send_round(args, Roles::of(1), phase, 0);
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
  __syncthreads();
  const uint64_t begun = known.ticket.phase, call = known.ticket.call;
  const braid::moe::CallShape shape =
      shape_behind(args.shape, args.of == nullptr ? nullptr : &known.of);
  const IncomingHead head = head_of(args.incoming);
  const int32_t num_rows = head.is_known != 0 ? head.num_rows : 0;
  const int rounds = head.is_known != 0 ? args.rounds.count(head.most_tokens) : 1;
  const Roles roles = Roles::of(rounds);
  const Steps sends(team.state->sent, known.sent, roles.senders);
  const Steps takes(team.state->taken, known.taken, roles.takers);
  const bool has_room = num_rows <= args.room_rows;
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
      send_round(args, roles, following, round + 1);
      if (sends.arrive(round)) {
        following.say_kept(shape, team.state->totals, args.num_tokens);
        following.tell();
      }
    }
    if (!roles.takes()) continue;
    const bool has_come =
        phase.await_flags(shape, &arrived, static_cast<uint32_t>(args.rounds.tokens));
    if (has_come && has_room)
      take_round(args, roles, phase, arrived, &places);
    else if (threadIdx.x == 0)
      places.are_all_filled = false;
    is_last = takes.arrive(round);
    if (is_last) phase.release();
  }
  fill_rest(args, num_rows);
  if (!places.are_all_filled) forget_ids(args);
  if (!is_last || threadIdx.x != 0) return;
  keep_numbers(team, begun + static_cast<uint64_t>(rounds) - 1, call);
  sends.settle(rounds - 1);
  takes.settle(rounds);
}
