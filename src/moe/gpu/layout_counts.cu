// Copies per rank, rows per expert, and which token goes where, of one rank's ids: count() of
// layout.h, by one block.
#include "moe/gpu/copies.cuh"
#include "moe/gpu/kernel.cuh"

namespace braid::moe::gpu {
namespace {

struct Counts {
  int32_t per_expert[kMostExperts];
  uint32_t per_rank[kMostRanks];
};

__device__ void count(const LayoutArgs& args, Counts* counts) {
  const int n = args.num_ranks;
  const MaskOfIds mask_of(args.ids, args.num_topk, args.num_experts, n, args.watch);
  for (int e = static_cast<int>(threadIdx.x); e < args.num_experts; e += kThreads)
    counts->per_expert[e] = 0;
  if (threadIdx.x < kMostRanks) counts->per_rank[threadIdx.x] = 0;
  count_copies(mask_of, 0, args.num_tokens, n, counts->per_rank);
  for (int token = static_cast<int>(threadIdx.x); token < args.num_tokens; token += kThreads) {
    const uint32_t mask = mask_of(token);
    for (int r = 0; r < n; ++r)
      args.is_in_rank[static_cast<int64_t>(token) * n + r] = (mask >> r & 1) != 0;
  }
  const int64_t all = static_cast<int64_t>(args.num_tokens) * args.num_topk;
  for (int64_t i = threadIdx.x; i < all; i += kThreads)
    if (args.ids[i] >= 0 && args.ids[i] < args.num_experts)
      atomicAdd(&counts->per_expert[args.ids[i]], 1);
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < args.num_experts; e += kThreads)
    args.per_expert[e] = counts->per_expert[e];
  if (static_cast<int>(threadIdx.x) < n)
    args.per_rank[threadIdx.x] = static_cast<int32_t>(counts->per_rank[threadIdx.x]);
}

}  // namespace
}  // namespace braid::moe::gpu

BRAID_MOE_KERNEL(braid_moe_layout, LayoutArgs) {
  __shared__ braid::moe::gpu::Counts counts;
  braid::moe::gpu::count(args, &counts);
}
