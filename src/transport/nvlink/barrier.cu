#include "transport/nvlink/barrier.h"
#include "transport/nvlink/team.cuh"

namespace braid::nvlink {
namespace {

/// All threads of the one warp alike.
__device__ bool may_go_on(const Team& team) {
  __shared__ int ok;
  if (threadIdx.x == 0) ok = has_failed(team) ? 0 : 1;
  __syncwarp();
  return ok != 0;
}

/// One block of one warp. Thread p deals with peer p, and has the signature for it.
__device__ __forceinline__ void meet(const Team& team, const SignalPad& pad, int channel,
                                     const BarrierMask& mask) {
  const auto peer = static_cast<int>(threadIdx.x);
  if (!may_go_on(team)) return;
  const uint64_t number = pad.numbers[channel] + 1;
  __syncwarp();
  if (peer < team.size && peer != team.rank) {
    const bool tells = (mask.tells >> peer & 1U) != 0;
    const bool hears = (mask.hears >> peer & 1U) != 0;
    if (tells) {
      Signal* theirs = signal_of(pad, peer, channel, team.rank);
      __threadfence_system();
      if (hears) theirs->signature[number % 2] = mask.signature;
      store_release(&theirs->number, number);
    }
    const Signal* ours = signal_of(pad, team.rank, channel, peer);
    if (hears && wait_for(team, &ours->number, {Wait::kBarrier, peer, number}) && tells) {
      const uint64_t theirs_meant =
          *static_cast<const volatile uint64_t*>(&ours->signature[number % 2]);
      if (theirs_meant != mask.signature)
        give_up(team, {Wait::kAgreement, peer, mask.signature}, theirs_meant, false);
    }
  }
  __syncwarp();
  if (peer == 0) pad.numbers[channel] = number;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(32)
    braid_barrier(Team team, SignalPad pad, int32_t channel, BarrierMask mask) {
  meet(team, pad, channel, mask);
}

/// A whole barrier.
extern "C" __global__ void __launch_bounds__(32)
    braid_barrier_of_pairs(Team team, SignalPad pad, int32_t channel,
                           const __grid_constant__ PairSignatures meant) {
  constexpr uint32_t kEveryone = (1U << kMostRanks) - 1;
  meet(team, pad, channel, {meant.signature[threadIdx.x % kMostRanks], kEveryone, kEveryone});
}

/// Of this rank and each rank in `with`, a bit per rank.
extern "C" __global__ void __launch_bounds__(32)
    braid_meet_pairs(Team team, SignalPad pad, uint32_t with) {
  const auto peer = static_cast<int>(threadIdx.x);
  if (!may_go_on(team)) return;
  if (peer >= team.size || peer == team.rank || (with >> peer & 1U) == 0) return;
  const uint64_t number = pad.pair_numbers[peer] + 1;
  __threadfence_system();
  store_release(&signal_of(pad, peer, kPairChannel, team.rank)->number, number);
  const Signal* ours = signal_of(pad, team.rank, kPairChannel, peer);
  wait_for(team, &ours->number, {Wait::kBarrier, peer, number});
  pad.pair_numbers[peer] = number;
}

}  // namespace braid::nvlink
