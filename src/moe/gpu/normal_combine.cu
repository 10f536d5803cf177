// Normal combine, in the rounds of normal.cc: rows back to their owners, who add them up in the order
// of ranks, then the biases, each sum rounded; the first row is not added to a zero. Rows of a rank's own
// tokens go through no slot: whoever adds up takes them from x, in the order that slots would have.
//
// In several rounds some of the blocks send and the rest add up. The second round leaves when all ranks have
// said in the first one that they mean this call: whoever adds up sees that, and says so in State::agreed,
// since a line of flags may be written anew as soon as its round was taken.
#include "moe/gpu/combine_push.cuh"
#include "moe/gpu/combine_sum.cuh"
#include "moe/gpu/kernel.cuh"
#include "moe/gpu/shapes.cuh"

namespace braid::moe::gpu {
namespace {

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
  __shared__ RowsByRank returning;
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
