#include "transport/nvlink/short_blocks.h"
#include "transport/nvlink/team.cuh"
#include "transport/nvlink/words.cuh"

namespace braid::nvlink {
namespace {

/// True when every thread of the block says so. A barrier of the block.
__device__ bool all_agree(bool ok) { return __syncthreads_and(ok ? 1 : 0) != 0; }

struct Range {
  uint64_t begin, bytes;
};

__device__ Range part_of(uint64_t bytes, int part, int num_parts) {
  const uint64_t begin = short_part_begin(bytes, part, num_parts);
  return {begin, short_part_begin(bytes, part + 1, num_parts) - begin};
}

__device__ void copy(std::byte* to, const std::byte* from, const Range& range) {
  copy_by_threads({threadIdx.x, kShortThreads}, to + range.begin, from + range.begin, range.bytes);
}

}  // namespace

/// num_blocks * num_parts blocks, all of which must be able to run at once.
extern "C" __global__ void __launch_bounds__(kShortThreads)
    braid_short_blocks(Team team, SignalPad pad, int32_t channel,
                       const __grid_constant__ ShortBlocks blocks) {
  if (!all_agree(threadIdx.x != 0 || !has_failed(team))) return;
  const ShortBlock& block = blocks.block[blockIdx.x / blocks.num_parts];
  const auto part = static_cast<int>(blockIdx.x) % blocks.num_parts;
  const Range out = part_of(block.out_bytes, part, blocks.num_parts);
  if (block.peer == team.rank) return copy(block.in, block.out, out);
  copy(block.theirs, block.out, out);
  __syncthreads();
  bool ok = true;
  if (threadIdx.x == 0) {
    const uint64_t number = *const_cast<const volatile uint64_t*>(&pad.numbers[channel]);
    store_release(short_flag(pad, block.peer, team.rank, part), number);
    ok = wait_for(team, short_flag(pad, team.rank, block.peer, part),
                  {Wait::kChunk, block.peer, number});
  }
  if (!all_agree(ok)) return;
  copy(block.in, block.ours, part_of(block.in_bytes, part, blocks.num_parts));
}

}  // namespace braid::nvlink
