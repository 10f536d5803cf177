#include "transport/nvlink/barrier.h"
#include "transport/nvlink/team.cuh"

namespace braid::nvlink {
namespace {

__device__ BoardCell* cell_of(const Board& board, int rank, int channel, int source) {
  return board.cells[rank] + channel * kMostRanks + source;
}

}  // namespace

/// One block of one warp. Thread p deals with peer p.
extern "C" __global__ void __launch_bounds__(32)
    braid_barrier(Team team, Board board, int32_t channel, Meeting meeting) {
  __shared__ int ok;
  const auto peer = static_cast<int>(threadIdx.x);
  if (peer == 0) ok = has_failed(team) ? 0 : 1;
  __syncwarp();
  if (ok == 0) return;
  const uint64_t number = board.numbers[channel] + 1;
  __syncwarp();
  if (peer < team.size && peer != team.rank) {
    const bool tells = (meeting.tells >> peer & 1U) != 0;
    const bool hears = (meeting.hears >> peer & 1U) != 0;
    if (tells) {
      BoardCell* theirs = cell_of(board, peer, channel, team.rank);
      __threadfence_system();
      if (hears) theirs->signature[number % 2] = meeting.signature;
      store_release(&theirs->number, number);
    }
    const BoardCell* ours = cell_of(board, team.rank, channel, peer);
    if (hears && wait_for(team, &ours->number, {Wait::kBarrier, peer, number}) && tells) {
      const uint64_t theirs_meant =
          *static_cast<const volatile uint64_t*>(&ours->signature[number % 2]);
      if (theirs_meant != meeting.signature)
        give_up(team, {Wait::kAgreement, peer, meeting.signature}, theirs_meant, false);
    }
  }
  __syncwarp();
  if (peer == 0) board.numbers[channel] = number;
}

}  // namespace braid::nvlink
