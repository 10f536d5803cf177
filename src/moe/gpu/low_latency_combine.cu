// Low-latency combine: experts' rows into slots token * K + k of their owners, and an owner's slots
// added up.
//
// Return    rows are numbered through all ranges (expert, owner); a block has a share of the numbers, a
//           warp moves one row.
// Sum       a warp adds up one vector of every lane: the rows of all k are asked for before the first
//           one is used, then added in the order of k, each product and each sum rounded.
#include "moe/gpu/kernel.cuh"
#include "moe/gpu/rows.cuh"
#include "moe/gpu/shapes.cuh"

namespace braid::moe::gpu {
namespace {

/// All threads: begins [E + 1] of all ranges among the rows.
__device__ void number_ranges(const LlReturnArgs& args, int32_t* begins) {
  const int ranges = args.num_experts;  // [L, N]
  for (int i = static_cast<int>(threadIdx.x); i < ranges; i += kThreads)
    begins[i + 1] = static_cast<int32_t>(args.layout_range[i] & 0xffffffff);
  __syncthreads();
  if (warp_of_thread() == 0) {
    const int lane = lane_of_thread();
    int32_t before = 0;
    if (lane == 0) begins[0] = 0;
    for (int first = 0; first < ranges; first += 32) {
      int32_t sum = first + lane < ranges ? begins[first + lane + 1] : 0;
#pragma unroll
      for (int far = 1; far < 32; far *= 2) {
        const int32_t other = __shfl_up_sync(~0U, sum, far);
        if (lane >= far) sum += other;
      }
      if (first + lane < ranges) begins[first + lane + 1] = before + sum;
      before += __shfl_sync(~0U, sum, 31);
    }
  }
  __syncthreads();
}

__device__ int range_of(const int32_t* begins, int ranges, int32_t row) {
  int low = 0, high = ranges - 1;  // the last range that begins at or before the row
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (begins[middle] <= row)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

__device__ void return_rows(const LlReturnArgs& args, const Phase& phase, const int32_t* begins) {
  const int n = args.team.layout.num_ranks, ranges = args.num_experts;
  const auto rows_per_expert = static_cast<int64_t>(args.max_tokens) * n;
  const Share share = Share::of(begins[ranges]);
  for (int row = share.begin + warp_of_thread(); row < share.end; row += kWarps) {
    const int range = range_of(begins, ranges, row);
    const int64_t place =
        range / n * rows_per_expert + (args.layout_range[range] >> 32) + row - begins[range];
    const auto slot = static_cast<uint64_t>(static_cast<uint32_t>(args.slots[place]));
    const uint64_t at = slot * args.row_bytes;
    if (at + args.row_bytes > args.team.layout.half_bytes) continue;  // not one of a dispatch's
    copy_row(args.x + static_cast<uint64_t>(place) * args.row_bytes, args.row_bytes,
             [&](const auto& put) { put(phase.half_at(range % n) + at); });
  }
}

// ---- sum ----

inline constexpr int kRowsInFlight = 8;

template <typename Type>
__device__ void sum_vectors(const LlSumArgs& args, const Phase& phase) {
  constexpr int kChannels = kLanes<Type>;
  const auto vectors = static_cast<int>(args.row_bytes / kVectorBytes);
  const int pieces = (vectors + 31) / 32, k = args.num_topk;
  const Share share = Share::of(static_cast<int64_t>(args.num_tokens) * pieces);
  for (int unit = share.begin + warp_of_thread(); unit < share.end; unit += kWarps) {
    const int token = unit / pieces;
    const int vector = unit % pieces * 32 + lane_of_thread();
    if (vector >= vectors) continue;
    const uint64_t offset = static_cast<uint64_t>(vector) * kVectorBytes;
    const int64_t* const ids = args.ids + static_cast<int64_t>(token) * k;
    const float* const weights = args.weights + static_cast<int64_t>(token) * k;
    const std::byte* const rows =
        phase.half() + static_cast<uint64_t>(token) * static_cast<uint64_t>(k) * args.row_bytes +
        offset;
    float sum[kChannels] = {};
    for (int first = 0; first < k; first += kRowsInFlight) {
      uint4 v[kRowsInFlight];
      float weight[kRowsInFlight];
      bool is_in[kRowsInFlight];
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i) {
        is_in[i] = first + i < k && ids[first + i] >= 0;
        weight[i] = first + i < k ? weights[first + i] : 0;
      }
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i)
        if (is_in[i]) v[i] = load_vector(rows + static_cast<uint64_t>(first + i) * args.row_bytes);
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i) {
        if (!is_in[i]) continue;
        float values[kChannels];
        Type::widen(v[i], values);
#pragma unroll
        for (int c = 0; c < kChannels; ++c)
          sum[c] = __fadd_rn(sum[c], __fmul_rn(weight[i], values[c]));
      }
    }
    store_vector(args.out + static_cast<uint64_t>(token) * args.row_bytes + offset,
                 Type::narrow(sum));
  }
}

template <typename Type>
__device__ void sum(const LlSumArgs& args) {
  __shared__ Arrived arrived;
  const Steps steps(args.team, args.team.state->taken);
  const Phase phase = phase_of(args.team, args.ticket);
  const CallShape shape = shape_behind(args.shape, args.of);
  if (phase.await_flags(shape, &arrived, ~0U, args.wait_ns)) sum_vectors<Type>(args, phase);
  if (!steps.arrive(0)) return;
  phase.release();
  if (threadIdx.x == 0) steps.settle(1);
}

}  // namespace
}  // namespace braid::moe::gpu

BRAID_MOE_KERNEL(braid_moe_ll_return, LlReturnArgs) {
  using namespace braid::moe::gpu;
  __shared__ int32_t begins[kMostExperts + 1];
  const Team& team = args.team;
  const Steps steps(team, team.state->sent);
  const uint64_t call = seen(&team.state->call) + 1;
  const Phase phase = next_phase(team);
  number_ranges(args, begins);
  if (phase.await_room()) return_rows(args, phase, begins);
  const int owner = static_cast<int>(threadIdx.x), n = team.layout.num_ranks;
  if (blockIdx.x == 0 && owner < n) {
    int32_t rows = 0;
    for (int range = owner; range < args.num_experts; range += n)
      rows += begins[range + 1] - begins[range];
    phase.rows()[owner] = static_cast<uint32_t>(rows);
  }
  if (!steps.arrive(0)) return;
  phase.tell(shape_behind(args.shape, args.of), phase.rows(), args.num_tokens);
  if (threadIdx.x != 0) return;
  *args.ticket = {phase.number(), call};
  keep_numbers(team, phase.number(), call);
  steps.settle(1);
}

BRAID_MOE_WIDE_KERNEL(braid_moe_ll_sum_bf16, LlSumArgs) {
  braid::moe::gpu::sum<braid::moe::gpu::Bf16>(args);
}
BRAID_MOE_WIDE_KERNEL(braid_moe_ll_sum_fp16, LlSumArgs) {
  braid::moe::gpu::sum<braid::moe::gpu::Fp16>(args);
}
BRAID_MOE_WIDE_KERNEL(braid_moe_ll_sum_fp32, LlSumArgs) {
  braid::moe::gpu::sum<braid::moe::gpu::Fp32>(args);
}
