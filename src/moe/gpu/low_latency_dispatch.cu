// Low-latency dispatch: copies into their slots at the targets, and at a target from its slots to
// the experts' rows.
//
// Send      a block has a share of the tokens. It asks for the first rows that its warps will move,
//           numbers its copies and rows (numbers.cuh) while they are on their way, waits for room, and
//           stores: of a token every warp has a piece, cast once, and puts it into the slots of all
//           ranks that the token goes to. The last block, which has counted all, tells every rank how
//           many rows its experts get.
// Fan out   where rows of (expert, source) begin is a sum over the sources before; a row's number among
//           them came in its slot. So every warp knows the places of whatever copy it takes, and blocks
//           need not wait for each other. A copy is read once, piece by piece, and stored to each of
//           its rows. Word w of a row's scales lies beside word w of the next row, whose copy another
//           block moves. Where there are many, such words are half of all requests; so they are left
//           until all blocks have moved their copies, and go 32 rows side by side.
#include "moe/gpu/fan_out_columns.cuh"
#include "moe/gpu/kernel.cuh"
#include "moe/gpu/send_pieces.cuh"

namespace braid::moe::gpu {
namespace {

// ---- send ----

/// All threads: rows of every expert to its rank, and what flags say, of numbers that are those of all
/// tokens.
__device__ void say_all(const LlSendArgs& args, const Phase& phase, const SendMemory& numbers) {
  const int n = args.team.layout.num_ranks, num_local = args.num_experts / n;
  for (int e = static_cast<int>(threadIdx.x); e < args.num_experts; e += kThreads)
    phase.row_counts_at(e / num_local, args.team.rank, num_local)[e % num_local] = numbers.rows[e];
  if (static_cast<int>(threadIdx.x) >= n) return;
  const uint32_t copies = numbers.copies[threadIdx.x];
  phase.say(args.shape, copies, copies, args.num_tokens);
}

/// All threads: a share of the tokens, unless room does not come.
template <typename Row>
__device__ void push(const LlSendArgs& args, StartFacts* known, SendMemory* numbers) {
  const SignalsSeen acks = look_at_acks(args.team);
  const StartReading asked(args.team, nullptr, nullptr);
  const Share share = Share::of(args.num_tokens);
  const SendCounter numbering(args, numbers);
  const Slots slots{args, *numbers};
  const int pieces = Row::pieces(args);
  const SendCounter::Before before = numbering.load_before(share.begin);
  bool is_first = true;
  for (int begin = share.begin; is_first || begin < share.end; begin += kBatch) {
    const int count = min(kBatch, share.end - begin);
    Units at(pieces);
    Row row;
    if (at.token < count) row.load(args, begin + at.token, at.piece);
    const SendCounter::Ids ids = numbering.load(begin, count);
    if (is_first)
      numbering.clear();
    else
      numbering.forget_batch();
    __syncthreads();
    if (is_first) {
      if (count > 0) numbering.count(begin, before);
      asked.keep(known);
    }
    numbering.take(ids, begin, count);
    __syncthreads();
    const Phase phase = next_phase(args.team, *known);
    const bool has_room = !is_first || phase.has_room(acks);
    numbering.number(phase, count);
    if (__syncthreads_and(has_room) == 0) return;
    is_first = false;
    const bool is_end = begin + count == share.end, is_last = blockIdx.x == gridDim.x - 1;
    if (!is_end || is_last) {
      numbering.pass(count);
      __syncthreads();
    }
    if (is_end && is_last) say_all(args, phase, *numbers);  // it has counted all
    while (at.token < count) {
      const Units next = at.next();
      Row row_of_next;  // on its way while this one is cast and stored
      if (next.token < count) row_of_next.load(args, begin + next.token, next.piece);
      if (at.has_head()) put_head(slots, numbering, at.token, begin + at.token);
      row.store(slots, at.token, at.piece);
      row = row_of_next;
      at = next;
    }
    __syncthreads();
  }
}

template <typename Row>
__device__ void send(const LlSendArgs& args) {
  __shared__ StartFacts known;
  __shared__ SendMemory numbers;
  push<Row>(args, &known, &numbers);
  const Team& team = args.team;
  const Steps steps(team.state->sent, known.sent);
  if (!steps.arrive(0)) return;
  const Phase phase = next_phase(team, known);
  phase.tell();
  if (threadIdx.x != 0) return;
  *args.ticket = {phase.number(), known.call + 1};
  keep_numbers(team, phase.number(), known.call + 1);
  steps.settle(1);
}

// ---- fan out ----

/// All threads of block 0, in place of what it tells the caller where rows have come: its wait was in vain.
/// What is enqueued behind this makes addresses of these numbers, and their memory is not initialised.
__device__ void say_nothing_came(const LlFanOutArgs& args) {
  const int n = args.team.layout.num_ranks, num_local = args.num_experts / n;
  for (int i = static_cast<int>(threadIdx.x); i < num_local * n; i += kThreads) {
    args.layout_range[i] = 0;
    if (i < num_local) args.count[i] = 0;
    if (i < n && args.copies.counts != nullptr) args.copies.counts[i] = 0;
  }
}

__device__ void fan_out(const LlFanOutArgs& args, const Phase& phase, const Incoming& in,
                        bool by_columns, FanOutMemory* memory) {
  const RowCounts counts(args, phase);
  FanOutPiece piece(args, by_columns);
  const int units = in.total() * piece.pieces();
  const auto step = static_cast<int>(gridDim.x) * kWarps;
  int unit = warp_of_thread() * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  if (unit < units) piece.load(in, unit);
  counts.begin(memory);
  const auto source = static_cast<int>(threadIdx.x);
  if (args.copies.counts != nullptr && blockIdx.x == 0 && source < args.team.layout.num_ranks)
    args.copies.counts[source] = static_cast<int32_t>(memory->arrived.rows[source]);
  __syncthreads();
  while (unit < units) {
    piece.store(memory->begins);
    unit += step;
    if (unit < units) piece.load(in, unit);
  }
}

}  // namespace
}  // namespace braid::moe::gpu

BRAID_MOE_KERNEL(braid_moe_ll_send, LlSendArgs) {
  braid::moe::gpu::send<braid::moe::gpu::PlainPiece>(args);
}
BRAID_MOE_KERNEL(braid_moe_ll_send_bf16, LlSendArgs) {
  braid::moe::gpu::send<braid::moe::gpu::CastPiece<braid::moe::gpu::Bf16>>(args);
}
BRAID_MOE_KERNEL(braid_moe_ll_send_fp16, LlSendArgs) {
  braid::moe::gpu::send<braid::moe::gpu::CastPiece<braid::moe::gpu::Fp16>>(args);
}
BRAID_MOE_KERNEL(braid_moe_ll_send_fp32, LlSendArgs) {
  braid::moe::gpu::send<braid::moe::gpu::CastPiece<braid::moe::gpu::Fp32>>(args);
}

BRAID_MOE_KERNEL(braid_moe_ll_fan_out, LlFanOutArgs) {
  using namespace braid::moe::gpu;
  __shared__ StartFacts known;
  __shared__ FanOutMemory memory;
  const SignalsSeen flags = look_at_flags(args.team);
  StartReading(args.team, args.ticket, nullptr).keep(&known);
  __syncthreads();
  const Steps steps(args.team.state->taken, known.taken);
  const Phase phase = phase_of(args.team, known.ticket);
  const bool has_come = phase.await_flags(
      args.shape, &memory.arrived, static_cast<uint32_t>(args.max_tokens), flags, args.wait_ns);
  bool by_columns = false;
  if (has_come) {
    const Incoming in(args, phase, memory.arrived);
    by_columns = args.scale_words > 0 && in.total() >= kManyCopies;
    fan_out(args, phase, in, by_columns, &memory);
    if (by_columns) {
      steps.arrive(0);
      if (steps.await_all(args.team, 0)) put_all_columns(args, in, memory);
    }
  } else if (blockIdx.x == 0) {
    say_nothing_came(args);
  }
  const int last_step = by_columns ? 1 : 0;
  if (!steps.arrive(last_step)) return;
  phase.release();
  if (threadIdx.x == 0) steps.settle(last_step + 1);
}
