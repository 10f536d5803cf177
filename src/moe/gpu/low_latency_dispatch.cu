// Low-latency dispatch: copies into their slots at the targets, and at a target from its slots to
// the experts' rows.
//
// Send      a block has a share of the tokens. It counts those before it (copies.cuh), waits for
//           room, and stores: of a token every warp has some vectors, cast them once, and puts them
//           into the slots of all ranks that the token goes to.
// Fan out   a block has a share of the copies, in the order of (source, slot), which is that of an
//           expert's rows. It counts its share's rows per expert and leaves the counts; when all
//           blocks have done so, the sum over the blocks before it is where its rows begin. A copy is
//           read once, by a warp, and stored to each of its rows.
#include "moe/gpu/cast.cuh"
#include "moe/gpu/copies.cuh"
#include "moe/gpu/kernel.cuh"

namespace braid::moe::gpu {
namespace {

/// Where copies of a batch's token go: put(slot's begin).
struct Slots {
  const Phase& phase;
  const Batch& batch;
  uint64_t slot_bytes;

  template <typename Put>
  __device__ __forceinline__ void each(int i, const Put& put) const {
    each_rank(batch.mask[i], [&](int rank) {
      put(rank, phase.region_at(rank) + batch.slot[i][rank] * slot_bytes);
    });
  }
};

/// By a warp: the words before the row.
__device__ void put_head(const LlSendArgs& args, const Slots& slots, int i, int token) {
  const int lane = lane_of_thread();
  const auto local = args.num_experts / args.team.layout.num_ranks;
  const int64_t id =
      lane < args.num_topk ? args.ids[static_cast<int64_t>(token) * args.num_topk + lane] : -1;
  const int rank_of_id = id < 0 || id >= args.num_experts ? -1 : static_cast<int>(id) / local;
  slots.each(i, [&](int rank, std::byte* slot) {
    if (lane == 0) *reinterpret_cast<uint32_t*>(slot) = static_cast<uint32_t>(token);
    if (lane < args.num_topk)
      reinterpret_cast<int32_t*>(slot + Slot::kIds)[lane] =
          rank_of_id == rank ? static_cast<int32_t>(id) % local : -1;
  });
}

/// A token's row as it is: pieces of what a warp has under way.
struct PutPlain {
  static __device__ __forceinline__ int pieces(const LlSendArgs& args) {
    return static_cast<int>((args.row_bytes / kVectorBytes + 127) / 128);
  }
  static __device__ void put(const LlSendArgs& args, const Slots& slots, int i, int token,
                             int piece) {
    const std::byte* const x = args.x + static_cast<uint64_t>(token) * args.x_bytes;
    const auto vectors = static_cast<uint32_t>(args.row_bytes / kVectorBytes);
    const auto begin = static_cast<uint32_t>(piece) * 128;
    copy_vectors(x, begin, min(vectors, begin + 128), [&](const auto& put) {
      slots.each(i, [&](int, std::byte* slot) { put(slot + args.slot.row); });
    });
  }
};

/// Cast: a piece is some times 512 channels, all of which are asked for before the first is cast.
template <typename Type>
struct PutCast {
  static constexpr int kBlocks = 32 / kLanesOfBlock;        // at a time
  static constexpr int kTimes = Type::kBytes == 2 ? 4 : 2;  // of a piece
  static __device__ __forceinline__ int blocks(const LlSendArgs& args) {
    return static_cast<int>(args.row_bytes / kScaleBlock);
  }
  static __device__ __forceinline__ int pieces(const LlSendArgs& args) {
    return (blocks(args) + kTimes * kBlocks - 1) / (kTimes * kBlocks);
  }
  static __device__ void put(const LlSendArgs& args, const Slots& slots, int i, int token,
                             int piece) {
    const int lane = lane_of_thread(), of_lane = lane % kLanesOfBlock;
    const int first = piece * kTimes * kBlocks + lane / kLanesOfBlock;
    const std::byte* const x = args.x + static_cast<uint64_t>(token) * args.x_bytes;
    uint4 in[kTimes][Type::kBytes];
#pragma unroll
    for (int t = 0; t < kTimes; ++t) {
      const int block = first + t * kBlocks;
      const std::byte* const at =
          x + static_cast<uint64_t>(block * kScaleBlock + of_lane * kCastChannels) * Type::kBytes;
#pragma unroll
      for (int v = 0; v < Type::kBytes; ++v)
        in[t][v] = block < blocks(args) ? load_vector(at + v * kVectorBytes) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int t = 0; t < kTimes; ++t) {
      const int block = first + t * kBlocks;
      const CastVector made = cast<Type>(in[t], args.form != ScaleForm::kFloat);
      if (block < blocks(args)) store(args, slots, i, block, made);
    }
  }

 private:
  static __device__ __forceinline__ void store(const LlSendArgs& args, const Slots& slots, int i,
                                               int block, const CastVector& made) {
    const int of_lane = lane_of_thread() % kLanesOfBlock;
    const auto channel = static_cast<uint64_t>(block * kScaleBlock + of_lane * kCastChannels);
    const uint32_t bits = __float_as_uint(made.scale);
    slots.each(i, [&](int, std::byte* slot) {
      store_vector(slot + args.slot.row + channel, made.row);
      if (of_lane != 0) return;
      if (args.form == ScaleForm::kUe8m0)
        slot[args.slot.scales + static_cast<uint64_t>(block)] = static_cast<std::byte>(bits >> 23);
      else
        reinterpret_cast<uint32_t*>(slot + args.slot.scales)[block] = bits;
    });
  }
};

template <typename Row>
__device__ void push(const LlSendArgs& args, const Phase& phase, const MaskOfIds& mask_of,
                     Share share, uint32_t* next) {
  __shared__ Batch batch;
  const int pieces = Row::pieces(args);
  const Slots slots{phase, batch, args.slot.bytes};
  for (int begin = share.begin; begin < share.end; begin += kBatch) {
    const int count = min(kBatch, share.end - begin);
    number_batch(mask_of, begin, count, args.team.layout.num_ranks, next, &batch);
    for (int unit = warp_of_thread(); unit < count * pieces; unit += kWarps) {
      const int i = unit / pieces, piece = unit % pieces;
      if (piece == pieces - 1) put_head(args, slots, i, begin + i);
      Row::put(args, slots, i, begin + i, piece);
    }
  }
}

template <typename Row>
__device__ void send(const LlSendArgs& args) {
  const Team& team = args.team;
  const int num_ranks = team.layout.num_ranks;
  const Steps steps(team, team.state->sent);
  const uint64_t call = seen(&team.state->call) + 1;
  const Phase phase = next_phase(team);
  __shared__ uint32_t next[kMostRanks];
  if (threadIdx.x < kMostRanks) next[threadIdx.x] = 0;
  const MaskOfIds mask_of(args.ids, args.num_topk, args.num_experts, num_ranks, team.watch);
  const Share share = Share::of(args.num_tokens);
  // Before the first token of a share; the last block's end is the end of all.
  count_copies(mask_of, 0, share.begin, num_ranks, next);
  if (phase.await_room()) push<Row>(args, phase, mask_of, share, next);
  __syncthreads();
  if (blockIdx.x == gridDim.x - 1 && static_cast<int>(threadIdx.x) < num_ranks)
    phase.rows()[threadIdx.x] = next[threadIdx.x];
  if (!steps.arrive(0)) return;
  phase.tell(args.shape, phase.rows(), args.num_tokens);
  if (threadIdx.x != 0) return;
  *args.ticket = {phase.number(), call};
  keep_numbers(team, phase.number(), call);
  steps.settle(1);
}

// ---- fan out ----

inline constexpr int kCopies = 32;  // that a block places at a time

/// Copies of all sources behind each other.
struct Incoming {
  const Phase& phase;
  const LlFanOutArgs& args;
  const int* begins;  // [N + 1], each source's first

  __device__ __forceinline__ int source_of(int copy) const {
    int source = 0;
    while (copy >= begins[source + 1]) ++source;
    return source;
  }
  __device__ __forceinline__ const std::byte* slot(int copy) const {
    const int source = source_of(copy);
    return phase.region_of(source) + static_cast<uint64_t>(copy - begins[source]) * args.slot.bytes;
  }
  /// An expert of this rank, or -1. What a peer says is looked at before it is used.
  __device__ __forceinline__ int id(int copy, int k) const {
    const int32_t id = seen(reinterpret_cast<const int32_t*>(slot(copy) + Slot::kIds) + k);
    return id < args.num_experts / args.team.layout.num_ranks ? id : -1;
  }
};

struct FanOutMemory {
  Arrived arrived;
  int begins[kMostRanks + 1];
  int32_t by_source[kMostExperts];  // [L, N], of this block's share
  int32_t next[kMostExperts];       // [L]: each expert's next row
  int32_t ids[kCopies * kMostTopk];
  int32_t rows[kCopies * kMostTopk];  // [copy, k]: where it goes, or -1
};

/// All threads: rows of the share by (expert, source), left for all blocks.
__device__ void count_share(const LlFanOutArgs& args, const Incoming& in, Share share,
                            FanOutMemory* memory) {
  const int n = args.team.layout.num_ranks, local = args.num_experts / n;
  for (int i = static_cast<int>(threadIdx.x); i < local * n; i += kThreads)
    memory->by_source[i] = 0;
  __syncthreads();
  const int64_t end = static_cast<int64_t>(share.end) * args.num_topk;
  for (int64_t i = static_cast<int64_t>(share.begin) * args.num_topk + threadIdx.x; i < end;
       i += kThreads) {
    const auto copy = static_cast<int>(i / args.num_topk);
    const int id = in.id(copy, static_cast<int>(i % args.num_topk));
    if (id >= 0) atomicAdd(&memory->by_source[id * n + in.source_of(copy)], 1);
  }
  __syncthreads();
  const auto block = static_cast<int64_t>(blockIdx.x);
  for (int e = static_cast<int>(threadIdx.x); e < local; e += kThreads) {
    int32_t rows = 0;
    for (int source = 0; source < n; ++source) rows += memory->by_source[e * n + source];
    args.counts[block * local + e] = rows;
  }
  for (int i = static_cast<int>(threadIdx.x); i < local * n; i += kThreads)
    args.source_counts[block * local * n + i] = memory->by_source[i];
}

/// All threads, when all blocks have left theirs: where each expert's rows of this share begin.
__device__ void begin_share(const LlFanOutArgs& args, FanOutMemory* memory) {
  const int local = args.num_experts / args.team.layout.num_ranks;
  for (int e = static_cast<int>(threadIdx.x); e < local; e += kThreads) memory->next[e] = 0;
  __syncthreads();
  const int64_t all = static_cast<int64_t>(blockIdx.x) * local;
  for (int64_t i = threadIdx.x; i < all; i += kThreads) {
    const int32_t rows = seen(args.counts + i);
    if (rows != 0) atomicAdd(&memory->next[i % local], rows);
  }
  __syncthreads();
}

/// All threads: ranges and counts of some experts, in the order of their blocks.
__device__ void tell_ranges(const LlFanOutArgs& args, FanOutMemory* memory) {
  const int n = args.team.layout.num_ranks, local = args.num_experts / n;
  const int lane = lane_of_thread();
  for (int e = static_cast<int>(blockIdx.x); e < local; e += static_cast<int>(gridDim.x)) {
    for (int source = warp_of_thread(); source < n; source += kWarps) {
      int32_t rows = 0;
#pragma unroll 4
      for (int block = lane; block < static_cast<int>(gridDim.x); block += 32)
        rows += seen(args.source_counts + (static_cast<int64_t>(block) * local + e) * n + source);
      rows = static_cast<int32_t>(__reduce_add_sync(~0U, rows));
      if (lane == 0) memory->by_source[source] = rows;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int32_t begin = 0;
      for (int source = 0; source < n; ++source) {
        const int32_t rows = memory->by_source[source];
        args.layout_range[e * n + source] = static_cast<int64_t>(begin) << 32 | rows;
        begin += rows;
      }
      args.count[e] = begin;
      if (args.stats != nullptr) args.stats[e] += begin;
      if (begin > args.max_tokens * n)
        refuse(args.team.watch, MaskOfIds::kTopkIdx, static_cast<uint64_t>(args.max_tokens) * n,
               static_cast<uint64_t>(begin), e);
    }
    __syncthreads();
  }
}

/// All threads: `num` ids of copies behind each other get their rows: those before them of the same
/// expert are counted, whoever looks.
__device__ void place(const LlFanOutArgs& args, int num, FanOutMemory* memory) {
  const int rows_per_expert = args.max_tokens * args.team.layout.num_ranks;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < num; i += kThreads) {
    const int id = memory->ids[i];
    int32_t row = id < 0 ? rows_per_expert : memory->next[id];
    for (int before = 0; before < i && id >= 0; ++before) row += memory->ids[before] == id ? 1 : 0;
    // A row too many was refused, and goes nowhere.
    memory->rows[i] = row < rows_per_expert ? id * rows_per_expert + row : -1;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < num; i += kThreads)
    if (memory->ids[i] >= 0) atomicAdd(&memory->next[memory->ids[i]], 1);
}

/// By a warp: a copy to its rows, which lane k knows of.
__device__ void put_rows(const LlFanOutArgs& args, const std::byte* slot, int row) {
  const int lane = lane_of_thread();
  const uint32_t wanted = __ballot_sync(~0U, row >= 0);
  if (wanted == 0) return;
  copy_row(slot + args.slot.row, args.row_bytes, [&](const auto& put) {
    for (uint32_t left = wanted; left != 0; left &= left - 1)
      put(args.x + static_cast<uint64_t>(__shfl_sync(~0U, row, __ffs(static_cast<int>(left)) - 1)) *
                       args.row_bytes);
  });
  if (row >= 0) {
    const uint32_t token = seen(reinterpret_cast<const uint32_t*>(slot));
    args.src_info[row] = static_cast<int32_t>(token);
    args.slots[row] = static_cast<int32_t>(token * static_cast<uint32_t>(args.num_topk)) + lane;
  }
  // Column-major: word w of a row lies at [w][row] of its expert.
  const auto* const scales = reinterpret_cast<const uint32_t*>(slot + args.slot.scales);
  const int rows = args.max_tokens * args.team.layout.num_ranks;
  for (int first = 0; first < args.scale_words; first += 32) {
    const int w = first + lane;
    const uint32_t scale = w < args.scale_words ? seen(scales + w) : 0;
    for (uint32_t left = wanted; left != 0; left &= left - 1) {
      const int to = __shfl_sync(~0U, row, __ffs(static_cast<int>(left)) - 1);
      const int expert = to / rows;
      if (w < args.scale_words)
        args.scales[(static_cast<int64_t>(expert) * args.scale_words + w) * rows + to -
                    expert * rows] = scale;
    }
  }
}

__device__ void fan_out(const LlFanOutArgs& args, const Incoming& in, Share share,
                        FanOutMemory* memory) {
  const int k = args.num_topk, lane = lane_of_thread();
  for (int begin = share.begin; begin < share.end; begin += kCopies) {
    const int count = min(kCopies, share.end - begin);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < count * k; i += kThreads)
      memory->ids[i] = in.id(begin + i / k, i % k);
    place(args, count * k, memory);
    for (int i = warp_of_thread(); i < count; i += kWarps)
      put_rows(args, in.slot(begin + i), lane < k ? memory->rows[i * k + lane] : -1);
  }
}

}  // namespace
}  // namespace braid::moe::gpu

BRAID_MOE_KERNEL(braid_moe_ll_send, LlSendArgs) {
  braid::moe::gpu::send<braid::moe::gpu::PutPlain>(args);
}
BRAID_MOE_KERNEL(braid_moe_ll_send_bf16, LlSendArgs) {
  braid::moe::gpu::send<braid::moe::gpu::PutCast<braid::moe::gpu::Bf16>>(args);
}
BRAID_MOE_KERNEL(braid_moe_ll_send_fp16, LlSendArgs) {
  braid::moe::gpu::send<braid::moe::gpu::PutCast<braid::moe::gpu::Fp16>>(args);
}
BRAID_MOE_KERNEL(braid_moe_ll_send_fp32, LlSendArgs) {
  braid::moe::gpu::send<braid::moe::gpu::PutCast<braid::moe::gpu::Fp32>>(args);
}

BRAID_MOE_KERNEL(braid_moe_ll_fan_out, LlFanOutArgs) {
  using namespace braid::moe::gpu;
  __shared__ FanOutMemory memory;
  const Steps steps(args.team, args.team.state->taken);
  const Phase phase = phase_of(args.team, args.ticket);
  const bool has_come = phase.await_flags(args.shape, &memory.arrived,
                                          static_cast<uint32_t>(args.max_tokens), args.wait_ns);
  if (threadIdx.x == 0) {
    memory.begins[0] = 0;
    for (int source = 0; source < args.team.layout.num_ranks; ++source)
      memory.begins[source + 1] =
          memory.begins[source] + (has_come ? static_cast<int>(memory.arrived.rows[source]) : 0);
  }
  __syncthreads();
  const Incoming in{phase, args, memory.begins};
  const Share share = Share::of(memory.begins[args.team.layout.num_ranks]);
  if (has_come) count_share(args, in, share, &memory);
  steps.arrive(0);
  if (steps.await_all(0) && has_come) {
    begin_share(args, &memory);
    tell_ranges(args, &memory);
    fan_out(args, in, share, &memory);
  }
  if (!steps.arrive(1)) return;
  phase.release();
  if (threadIdx.x == 0) steps.settle(2);
}
