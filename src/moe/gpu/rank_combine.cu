// A low-latency combine that sums by rank, as moe/rank_combine.cc tells: of every copy that came here one
// sum goes to slot `token` of this rank's region at its owner, which adds up those of all ranks.
//
// Return    copies are numbered through all sources. A warp has a piece of one's sum: it asks for the rows
//           of two choices at a time, adds them in the order of k, each product and each sum rounded, and
//           meanwhile asks what the table says of its next copy.
// Sum       a warp adds up one vector of every lane: the rows of all ranks that the token went to are asked
//           for before the first one is used, then added in the order of ranks.
#include "moe/gpu/copies.cuh"
#include "moe/gpu/kernel.cuh"
#include "moe/gpu/row_sum.cuh"
#include "moe/gpu/shapes.cuh"

namespace braid::moe::gpu {
namespace {

// ---- return ----

/// What the table says of a copy: lane k knows of its k-th choice. The caller may have written over it, so
/// nothing outside of x is read for it, and nothing outside of a region is written.
class Copy {
 public:
  __device__ __forceinline__ void load(const LlRankReturnArgs& args, CopiesInOrder::At at) {
    const int64_t copy = static_cast<int64_t>(at.source) * args.max_tokens + at.number;
    const int k = lane_of_thread();
    const bool is_choice = k < args.num_topk;
    owner_ = at.source;
    token_ = args.copies.tokens[copy];
    place_ = is_choice ? args.copies.places[copy * args.num_topk + k] : -1;
    weight_ = is_choice ? args.copies.weights[copy * args.num_topk + k] : 0;
    const auto rows = static_cast<int64_t>(args.num_experts) * args.max_tokens;
    if (place_ >= rows) place_ = -1;
  }
  __device__ __forceinline__ uint32_t present() const { return __ballot_sync(~0U, place_ >= 0); }
  __device__ __forceinline__ int32_t place(int k) const { return __shfl_sync(~0U, place_, k); }
  __device__ __forceinline__ float weight(int k) const { return __shfl_sync(~0U, weight_, k); }
  __device__ __forceinline__ bool has_slot(const LlRankReturnArgs& args) const {
    return token_ >= 0 && token_ < args.max_tokens;
  }
  __device__ __forceinline__ std::byte* slot(const LlRankReturnArgs& args,
                                             const Phase& phase) const {
    return phase.region_at(owner_) + static_cast<uint64_t>(token_) * args.row_bytes;
  }

 private:
  int32_t owner_ = 0, token_ = -1, place_ = -1;
  float weight_ = 0;
};

inline constexpr int kVectorsOfLane = 4, kRowsAtOnce = 2;

/// A piece of a copy's sum, by a warp. `ask_next` is called when its first rows are on their way.
template <typename Type, typename AskNext>
__device__ __forceinline__ void return_piece(const LlRankReturnArgs& args, const Phase& phase,
                                             const Copy& copy, uint32_t begin, uint32_t end,
                                             const AskNext& ask_next) {
  const uint32_t first = begin + static_cast<uint32_t>(lane_of_thread());
  WeightedSum<Type> sum[kVectorsOfLane];
  uint32_t left = copy.present();
  bool is_first = true;
  do {
    uint4 v[kRowsAtOnce][kVectorsOfLane];
    float weight[kRowsAtOnce];
    bool has[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      has[r] = left != 0;
      const int k = has[r] ? __ffs(static_cast<int>(left)) - 1 : 0;
      left &= left - 1;
      weight[r] = copy.weight(k);
      const std::byte* const row =
          args.x + static_cast<uint64_t>(max(copy.place(k), 0)) * args.row_bytes;
#pragma unroll
      for (uint32_t i = 0; i < kVectorsOfLane; ++i)
        if (has[r] && first + 32 * i < end)
          v[r][i] = load_vector(row + (first + 32 * i) * kVectorBytes);
    }
    if (is_first) ask_next();
    is_first = false;
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r)
#pragma unroll
      for (uint32_t i = 0; i < kVectorsOfLane; ++i)
        if (has[r] && first + 32 * i < end) sum[i].add(weight[r], v[r][i]);
  } while (left != 0);
  if (!copy.has_slot(args)) return;
  std::byte* const slot = copy.slot(args, phase);
#pragma unroll
  for (uint32_t i = 0; i < kVectorsOfLane; ++i)
    if (first + 32 * i < end)
      store_vector(slot + (first + 32 * i) * kVectorBytes, sum[i].rounded());
}

template <typename Type>
__device__ void return_sums(const LlRankReturnArgs& args) {
  __shared__ StartFacts known;
  __shared__ int32_t counts[kMostRanks];
  const Team& team = args.team;
  const int n = team.layout.num_ranks;
  const auto owner = static_cast<int>(threadIdx.x);
  const SignalsSeen acks = look_at_acks(team);
  const StartReading asked(team, nullptr, args.of);
  if (owner < kMostRanks)
    counts[owner] = owner < n ? min(max(args.copies.counts[owner], 0), args.max_tokens) : 0;
  asked.keep(&known);
  __syncthreads();
  const Steps steps(team.state->sent, known.sent);
  const Phase phase = next_phase(team, known);
  const CopiesInOrder copies(lane_of_thread() < kMostRanks ? counts[lane_of_thread()] : 0);
  const Cut cut = Cut::of<kVectorsOfLane>(args.row_bytes);
  const int units = copies.total() * cut.pieces;
  const auto step = static_cast<int>(gridDim.x) * kWarps;
  int unit = warp_of_thread() * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  Copy next;
  if (unit < units) next.load(args, copies[unit / cut.pieces]);
  if (__syncthreads_and(phase.has_room(acks)) != 0) {
    if (blockIdx.x == 0 && owner < n)
      phase.say(shape_behind(args.shape, &known.of), static_cast<uint32_t>(counts[owner]),
                static_cast<uint32_t>(counts[owner]), args.num_tokens);
    for (; unit < units; unit += step) {
      const Copy copy = next;
      const int piece = unit % cut.pieces;
      return_piece<Type>(args, phase, copy, cut.begin(piece), cut.end(piece), [&] {
        if (unit + step < units) next.load(args, copies[(unit + step) / cut.pieces]);
      });
    }
  }
  if (!steps.arrive(0)) return;
  phase.tell();
  if (threadIdx.x != 0) return;
  *args.ticket = {phase.number(), known.call + 1};
  keep_numbers(team, phase.number(), known.call + 1);
  steps.settle(1);
}

// ---- sum ----

inline constexpr int kRanksInFlight = 8;

/// To which ranks a token went: lane k knows of its k-th expert.
class RanksOfToken {
 public:
  __device__ explicit RanksOfToken(const LlSumArgs& args)
      : num_experts_(args.num_experts), rank_of_(args.num_experts, args.team.layout.num_ranks) {}
  __device__ __forceinline__ void load(const LlSumArgs& args, int token) {
    const int k = lane_of_thread();
    id_ = k < args.num_topk ? args.ids[static_cast<int64_t>(token) * args.num_topk + k] : -1;
  }
  __device__ __forceinline__ uint32_t mask() const {
    const bool is_expert = id_ >= 0 && id_ < num_experts_;
    return __reduce_or_sync(~0U, is_expert ? 1U << rank_of_(static_cast<uint32_t>(id_)) : 0U);
  }

 private:
  const int32_t num_experts_;
  const RankOf rank_of_;
  int64_t id_ = -1;
};

/// `ranks`: of the first unit of this warp.
template <typename Type>
__device__ void add_rank_sums(const LlSumArgs& args, const Phase& phase, RanksOfToken& ranks,
                              int pieces) {
  const auto vectors = static_cast<int>(args.row_bytes / kVectorBytes);
  const int n = args.team.layout.num_ranks, units = args.num_tokens * pieces;
  const auto step = static_cast<int>(gridDim.x) * kWarps;
  for (int unit = warp_of_thread() * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
       unit < units; unit += step) {
    const int token = unit / pieces, vector = unit % pieces * 32 + lane_of_thread();
    const uint64_t at = static_cast<uint64_t>(token) * args.row_bytes +
                        static_cast<uint64_t>(vector) * kVectorBytes;
    const uint32_t mask = ranks.mask();
    RowSum<Type> sum;
    for (int first = 0; first < n; first += kRanksInFlight) {
      uint4 v[kRanksInFlight];
#pragma unroll
      for (int i = 0; i < kRanksInFlight; ++i)
        if ((mask >> (first + i) & 1) != 0 && vector < vectors)
          v[i] = load_vector(phase.region_of(first + i) + at);
      if (first == 0 && unit + step < units) ranks.load(args, (unit + step) / pieces);
#pragma unroll
      for (int i = 0; i < kRanksInFlight; ++i)
        if ((mask >> (first + i) & 1) != 0) sum.add(v[i]);
    }
    if (vector < vectors) store_vector(args.out + at, sum.rounded());
  }
}

template <typename Type>
__device__ void sum_by_rank(const LlSumArgs& args) {
  __shared__ StartFacts known;
  __shared__ Arrived arrived;
  const SignalsSeen flags = look_at_flags(args.team);
  const StartReading asked(args.team, args.ticket, args.of);
  const int pieces = static_cast<int>((args.row_bytes / kVectorBytes + 31) / 32);
  const int unit = warp_of_thread() * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  RanksOfToken ranks(args);
  if (unit < args.num_tokens * pieces) ranks.load(args, unit / pieces);
  asked.keep(&known);
  __syncthreads();
  const Steps steps(args.team.state->taken, known.taken);
  const Phase phase = phase_of(args.team, known.ticket);
  const CallShape shape = shape_behind(args.shape, &known.of);
  if (phase.await_flags(shape, &arrived, ~0U, flags, args.wait_ns))
    add_rank_sums<Type>(args, phase, ranks, pieces);
  if (!steps.arrive(0)) return;
  phase.release();
  if (threadIdx.x == 0) steps.settle(1);
}

}  // namespace
}  // namespace braid::moe::gpu

BRAID_MOE_KERNEL(braid_moe_ll_rank_return_bf16, LlRankReturnArgs) {
  braid::moe::gpu::return_sums<braid::moe::gpu::Bf16>(args);
}
BRAID_MOE_KERNEL(braid_moe_ll_rank_return_fp16, LlRankReturnArgs) {
  braid::moe::gpu::return_sums<braid::moe::gpu::Fp16>(args);
}
BRAID_MOE_KERNEL(braid_moe_ll_rank_return_fp32, LlRankReturnArgs) {
  braid::moe::gpu::return_sums<braid::moe::gpu::Fp32>(args);
}

BRAID_MOE_KERNEL(braid_moe_ll_rank_sum_bf16, LlSumArgs) {
  braid::moe::gpu::sum_by_rank<braid::moe::gpu::Bf16>(args);
}
BRAID_MOE_KERNEL(braid_moe_ll_rank_sum_fp16, LlSumArgs) {
  braid::moe::gpu::sum_by_rank<braid::moe::gpu::Fp16>(args);
}
BRAID_MOE_KERNEL(braid_moe_ll_rank_sum_fp32, LlSumArgs) {
  braid::moe::gpu::sum_by_rank<braid::moe::gpu::Fp32>(args);
}
