// Low-latency combine: experts' rows into slots token * K + k of their owners, and an owner's slots
// added up.
//
// Return    rows are numbered through all ranges (expert, owner). Warps take pieces of them in turn,
//           and ask for the first while they wait for room.
// Sum       a warp adds up one vector of every lane: the rows of all k are asked for before the first
//           one is used, then added in the order of k, each product and each sum rounded.
#include "moe/gpu/kernel.cuh"
#include "moe/gpu/row_sum.cuh"
#include "moe/gpu/shapes.cuh"

namespace braid::moe::gpu {
namespace {

struct ReturnMemory {
  int32_t begins[kMostExperts + 1];  // of all ranges [L, N] among the rows
  int32_t places[kMostExperts];      // where a row lies among its expert's, less its number
  int32_t of_warp[kWarps];
  uint32_t to[kMostRanks];  // rows to each owner
};

/// The ranges of a thread, which lie behind each other.
class Ranges {
 public:
  __device__ explicit Ranges(const LlReturnArgs& args)
      : args_(args),
        each_((args.num_experts + kThreads - 1) / kThreads),
        first_(static_cast<int>(threadIdx.x) * each_) {
#pragma unroll
    for (int i = 0; i < kMost; ++i) packed_[i] = is_range(i) ? args.layout_range[first_ + i] : 0;
  }
  /// All threads: numbers the rows of all.
  __device__ void number(ReturnMemory* memory) const {
    const int n = args_.team.layout.num_ranks, lane = lane_of_thread();
    if (threadIdx.x < kMostRanks) memory->to[threadIdx.x] = 0;
    int32_t own = 0;
#pragma unroll
    for (int i = 0; i < kMost; ++i) own += rows(i);
    int32_t sum = own;
#pragma unroll
    for (int far = 1; far < 32; far *= 2) {
      const int32_t other = __shfl_up_sync(~0U, sum, far);
      if (lane >= far) sum += other;
    }
    if (lane == 31) memory->of_warp[warp_of_thread()] = sum;
    __syncthreads();
    int32_t begin = sum - own;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp)
      begin += warp < warp_of_thread() ? memory->of_warp[warp] : 0;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (!is_range(i)) continue;
      const int range = first_ + i;
      memory->begins[range] = begin;
      memory->places[range] = static_cast<int32_t>(packed_[i] >> 32) - begin;
      begin += rows(i);
      if (rows(i) != 0) atomicAdd(&memory->to[range % n], static_cast<uint32_t>(rows(i)));
      if (range == args_.num_experts - 1) memory->begins[range + 1] = begin;
    }
    __syncthreads();
  }

 private:
  static constexpr int kMost = kMostExperts / kThreads;
  __device__ __forceinline__ bool is_range(int i) const {
    return i < each_ && first_ + i < args_.num_experts;
  }
  __device__ __forceinline__ int32_t rows(int i) const {
    return static_cast<int32_t>(packed_[i] & 0xffffffff);
  }

  const LlReturnArgs& args_;
  const int each_, first_;
  int64_t packed_[kMost];
};

/// By a warp: the last range that begins at or before the row. Lanes look at places far from each
/// other, then at all between two of them.
__device__ __forceinline__ int range_of(const int32_t* begins, int ranges, int32_t row) {
  int low = 0;
#pragma unroll
  for (int far = 1024; far >= 1; far /= 32) {
    const int at = low + lane_of_thread() * far;
    const uint32_t before = __ballot_sync(~0U, at < ranges && begins[at] <= row);
    low += (__popc(before) - 1) * far;
  }
  return low;
}
static_assert(kMostExperts <= 32 * 1024);

/// A piece of a row, on its way to the row's owner.
class ReturnPiece {
 public:
  __device__ explicit ReturnPiece(const LlReturnArgs& args)
      : args_(args),
        cut_(Cut::of(args.row_bytes)),
        rows_per_expert_(static_cast<int64_t>(args.max_tokens) * args.team.layout.num_ranks) {}

  __device__ __forceinline__ int pieces() const { return cut_.pieces; }
  __device__ __forceinline__ void load(const ReturnMemory& memory, int unit) {
    const int n = args_.team.layout.num_ranks, row = unit / pieces(), piece = unit % pieces();
    const int range = range_of(memory.begins, args_.num_experts, row);
    const int64_t place = range / n * rows_per_expert_ + memory.places[range] + row;
    owner_ = range % n;
    slot_ = static_cast<uint32_t>(args_.slots[place]);
    piece_.load(args_.x + static_cast<uint64_t>(place) * args_.row_bytes, cut_.begin(piece),
                cut_.end(piece));
  }
  __device__ __forceinline__ void store(const Phase& phase) const {
    const uint64_t at = static_cast<uint64_t>(slot_) * args_.row_bytes;
    if (at + args_.row_bytes > args_.team.layout.half_bytes) return;  // not one of a dispatch's
    piece_.store(phase.half_at(owner_) + at);
  }

 private:
  const LlReturnArgs& args_;
  const Cut cut_;
  const int64_t rows_per_expert_;
  Piece<> piece_;
  int owner_ = 0;
  uint32_t slot_ = 0;
};

__device__ void return_rows(const LlReturnArgs& args, const Phase& phase, const CallShape& shape,
                            const SignalsSeen& acks, const ReturnMemory& memory) {
  ReturnPiece piece(args);
  const int units = memory.begins[args.num_experts] * piece.pieces();
  const auto step = static_cast<int>(gridDim.x) * kWarps;
  int unit = warp_of_thread() * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  if (unit < units) piece.load(memory, unit);
  if (__syncthreads_and(phase.has_room(acks)) == 0) return;
  const auto owner = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0 && owner < args.team.layout.num_ranks)
    phase.say(shape, memory.to[owner], memory.to[owner], args.num_tokens);
  while (unit < units) {
    piece.store(phase);
    unit += step;
    if (unit < units) piece.load(memory, unit);
  }
}

// ---- sum ----

inline constexpr int kRowsInFlight = 8;

/// What a warp adds up: one vector of every lane of a token. Lane k knows of the k-th id and weight.
class Terms {
 public:
  __device__ __forceinline__ void load(const LlSumArgs& args, int token) {
    const int k = lane_of_thread();
    const int64_t at = static_cast<int64_t>(token) * args.num_topk + k;
    id_ = k < args.num_topk ? args.ids[at] : -1;
    weight_ = k < args.num_topk ? args.weights[at] : 0;
  }
  __device__ __forceinline__ uint32_t present() const { return __ballot_sync(~0U, id_ >= 0); }
  __device__ __forceinline__ float weight(int k) const { return __shfl_sync(~0U, weight_, k); }

 private:
  int64_t id_ = -1;
  float weight_ = 0;
};

/// `terms`: of the first unit of this warp.
template <typename Type>
__device__ void sum_vectors(const LlSumArgs& args, const Phase& phase, Terms terms, int pieces) {
  const auto vectors = static_cast<int>(args.row_bytes / kVectorBytes);
  const int k = args.num_topk, units = args.num_tokens * pieces;
  const auto step = static_cast<int>(gridDim.x) * kWarps;
  const std::byte* const half = phase.half();
  for (int unit = warp_of_thread() * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
       unit < units; unit += step) {
    const int token = unit / pieces, vector = unit % pieces * 32 + lane_of_thread();
    const uint64_t offset = static_cast<uint64_t>(vector) * kVectorBytes;
    const uint32_t present = terms.present();
    const Terms now = terms;
    const std::byte* const rows =
        half + static_cast<uint64_t>(token) * static_cast<uint64_t>(k) * args.row_bytes + offset;
    WeightedSum<Type> sum;
    for (int first = 0; first < k; first += kRowsInFlight) {
      uint4 v[kRowsInFlight];
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i)
        if (first + i < k && (present >> (first + i) & 1) != 0 && vector < vectors)
          v[i] = load_vector(rows + static_cast<uint64_t>(first + i) * args.row_bytes);
      if (first == 0 && unit + step < units) terms.load(args, (unit + step) / pieces);
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i) {
        if (first + i >= k) continue;
        const float weight = now.weight(first + i);
        if ((present >> (first + i) & 1) != 0) sum.add(weight, v[i]);
      }
    }
    if (vector < vectors)
      store_vector(args.out + static_cast<uint64_t>(token) * args.row_bytes + offset,
                   sum.rounded());
  }
}

template <typename Type>
__device__ void sum(const LlSumArgs& args) {
  __shared__ StartFacts known;
  __shared__ Arrived arrived;
  const SignalsSeen flags = look_at_flags(args.team);
  const StartReading asked(args.team, args.ticket, args.of);
  const int pieces = static_cast<int>((args.row_bytes / kVectorBytes + 31) / 32);
  const int unit = warp_of_thread() * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  Terms terms;
  if (unit < args.num_tokens * pieces) terms.load(args, unit / pieces);
  asked.keep(&known);
  __syncthreads();
  const Steps steps(args.team.state->taken, known.taken);
  const Phase phase = phase_of(args.team, known.ticket);
  const CallShape shape = shape_behind(args.shape, &known.of);
  if (phase.await_flags(shape, &arrived, ~0U, flags, args.wait_ns))
    sum_vectors<Type>(args, phase, terms, pieces);
  if (!steps.arrive(0)) return;
  phase.release();
  if (threadIdx.x == 0) steps.settle(1);
}

}  // namespace
}  // namespace braid::moe::gpu

BRAID_MOE_KERNEL(braid_moe_ll_return, LlReturnArgs) {
  using namespace braid::moe::gpu;
  __shared__ StartFacts known;
  __shared__ ReturnMemory memory;
  const Team& team = args.team;
  const SignalsSeen acks = look_at_acks(team);
  const StartReading asked(team, nullptr, args.of);
  const Ranges ranges(args);
  asked.keep(&known);
  ranges.number(&memory);
  const Steps steps(team.state->sent, known.sent);
  const Phase phase = next_phase(team, known);
  return_rows(args, phase, shape_behind(args.shape, &known.of), acks, memory);
  if (!steps.arrive(0)) return;
  phase.tell();
  if (threadIdx.x != 0) return;
  *args.ticket = {phase.number(), known.call + 1};
  keep_numbers(team, phase.number(), known.call + 1);
  steps.settle(1);
}

BRAID_MOE_KERNEL(braid_moe_ll_sum_bf16, LlSumArgs) {
  braid::moe::gpu::sum<braid::moe::gpu::Bf16>(args);
}
BRAID_MOE_KERNEL(braid_moe_ll_sum_fp16, LlSumArgs) {
  braid::moe::gpu::sum<braid::moe::gpu::Fp16>(args);
}
BRAID_MOE_KERNEL(braid_moe_ll_sum_fp32, LlSumArgs) {
  braid::moe::gpu::sum<braid::moe::gpu::Fp32>(args);
}
