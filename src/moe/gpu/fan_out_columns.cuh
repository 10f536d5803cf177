// Scales of many rows, and what is told of each row, by columns: 32 rows of an expert side by side, when all copies
// are in their places.
#pragma once

#include "moe/gpu/fan_out_pieces.cuh"

namespace braid::moe::gpu {

/// From so many copies on, scales go by columns, behind a meeting of all blocks: fewer are stored sooner
/// word by word, each a request of its own.
inline constexpr int kManyCopies = 4096;

/// By a warp, lane for lane: what is told of row `number` of an expert, and its scales, which so lie side
/// by side. The row's copy is where its slot will be.
__device__ inline void put_columns(const LlFanOutArgs& args, const Incoming& in,
                                   const int32_t* begins, int expert, int number) {
  constexpr int kAtOnce = 8;
  const int n = args.team.layout.num_ranks, num_local = args.num_experts / n;
  const int rows_per_expert = args.max_tokens * n, k = args.num_topk;
  int source = 0;
  for (int s = 1; s < n; ++s) source += begins[expert * n + s] <= number ? 1 : 0;
  const int32_t word = word_of(number - begins[expert * n + source], expert, num_local);
  const int64_t row = static_cast<int64_t>(expert) * rows_per_expert + number;
  const std::byte* const slot = in.slot(source, seen(args.slots + row));
  const auto* const head = reinterpret_cast<const int32_t*>(slot);
  int choice = 0;
  for (int first = 0; first < k; first += kAtOnce) {
    int32_t words[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      words[i] = first + i < k ? head[Slot::kIds / 4 + first + i] : -1;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) choice = words[i] == word ? first + i : choice;
  }
  args.src_info[row] = head[0];
  args.slots[row] = head[0] * k + choice;
  uint32_t* const column =
      args.scales + static_cast<int64_t>(expert) * args.scale_words * rows_per_expert + number;
  for (int first = 0; first < args.scale_words; first += 4 * kAtOnce) {
    uint4 v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + 4 * i < args.scale_words)
        v[i] = load_vector(slot + args.slot.scales + 4 * static_cast<uint64_t>(first + 4 * i));
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const uint32_t each[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
      for (int w = 0; w < 4; ++w)
        if (first + 4 * i + w < args.scale_words)
          column[static_cast<int64_t>(first + 4 * i + w) * rows_per_expert] = each[w];
    }
  }
}

/// All threads: in turn, 32 rows of an expert by each warp.
__device__ inline void put_all_columns(const LlFanOutArgs& args, const Incoming& in,
                                       const FanOutMemory& memory) {
  const int rows_per_expert = args.max_tokens * args.team.layout.num_ranks;
  const int groups = (rows_per_expert + 31) / 32;
  const int units = groups * (args.num_experts / args.team.layout.num_ranks);
  const auto step = static_cast<int>(gridDim.x) * kWarps;
  for (int unit = warp_of_thread() * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
       unit < units; unit += step) {
    const int expert = unit / groups, number = unit % groups * 32 + lane_of_thread();
    if (number < min(memory.counts[expert], rows_per_expert))
      put_columns(args, in, memory.begins, expert, number);
  }
}

}  // namespace braid::moe::gpu
