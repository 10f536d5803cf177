// All-reduce and reduce-scatter by direct kernels (direct.cuh). Sums are those of the reduce
// kernels, a chunk a time: in rank order, this rank's own operand where it is.
#pragma once

#include "coll/direct/bulk_sums.cuh"
#include "coll/direct/copy_out.cuh"
#include "coll/direct/push.cuh"
#include "coll/reduce/each_op.cuh"

namespace braid::coll::device {

__device__ __forceinline__ bool is_scatter(const DirectCall& call) {
  return call.args.shape.path == PacketPath::kReduceScatter;
}
__device__ __forceinline__ bool is_one_shot(const DirectCall& call) {
  return call.args.shape.path == PacketPath::kOneShot;
}
__device__ __forceinline__ bool is_two_shot(const DirectCall& call) {
  return call.args.shape.path == PacketPath::kTwoShot;
}

/// What `owner` sums, in send.
__device__ __forceinline__ Span part_of(const DirectCall& call, int owner) {
  if (is_one_shot(call)) return {0, call.args.bytes};
  return is_scatter(call) ? call.block_of(owner) : call.slice_of(owner);
}

__device__ __forceinline__ void push_operands(const DirectCall& call, const Duty& duty) {
  if (is_one_shot(call)) {
    push_to_all(call, duty);
  } else {
    push_to_each(call, duty, [&](int owner) { return part_of(call, owner); });
  }
}

__device__ __forceinline__ void copy_results(const DirectCall& call, const Duty& duty) {
  copy_out(call, duty, 1, -1, [&](int owner) { return call.slice_of(owner); });
}

/// This thread looks for the operand of the rank of its number. In one shot ours has a flag too:
/// it was read.
__device__ __forceinline__ bool looks_for_operand(const DirectCall& call) {
  const int from = static_cast<int>(threadIdx.x);
  return from < call.size() && (from != call.rank() || is_one_shot(call));
}

/// Everyone's operands of the chunk have arrived. False: gave up.
__device__ __forceinline__ bool await_operands(const DirectCall& call, uint64_t chunk) {
  const int from = static_cast<int>(threadIdx.x);
  return all_agree(!looks_for_operand(call) || wait_for_chunk(call, 0, from, chunk));
}

/// Whether they have arrived; does not wait.
__device__ __forceinline__ bool are_operands_here(const DirectCall& call, uint64_t chunk) {
  const int from = static_cast<int>(threadIdx.x);
  return all_agree(!looks_for_operand(call) || has_arrived(call, 0, from, chunk));
}

/// The sum of chunk c: from where to where. Thread t sets what concerns rank t.
__device__ __forceinline__ void set_sum(const DirectCall& call, uint64_t c, uint32_t element_bytes,
                                        ReduceArgs* sum) {
  const Span part = part_of(call, call.rank());
  const Span chunk = call.chunk_of(c, part.bytes);
  const int t = static_cast<int>(threadIdx.x);
  if (t < call.size()) {
    sum->srcs[t] = t == call.rank() ? sent(call, part.begin + chunk.begin)
                                    : call.slot(call.rank(), 0, t) + chunk.begin;
    sum->dsts[t] = t == 0 ? received(call, (is_scatter(call) ? 0 : part.begin) + chunk.begin)
                          : call.slot(call.peer(t), 1, call.rank()) + chunk.begin;
  }
  if (t == 0) {
    sum->count_elements = chunk.bytes / element_bytes;
    sum->num_srcs = call.size();
    sum->num_dsts = is_two_shot(call) ? call.size() : 1;
  }
}

#if __CUDA_ARCH__ >= 900

/// The flags that a block has told, of its chunks in their order.
class ToldChunks {
 public:
  __device__ ToldChunks(const DirectCall& call, const Duty& duty) : call_(call), duty_(duty) {}

  /// All before the block's chunk number `step`; behind a barrier that follows their stores.
  __device__ __forceinline__ void tell_before(uint64_t step) {
#pragma unroll 1
    for (; told_ < step; ++told_) {
      const int to = told_by_this_thread(told_);
      if (to >= 0 && to < call_.size() && to != call_.rank())
        tell(call_, to, 1, duty_.index + told_ * duty_.count);
    }
  }

 private:
  const DirectCall& call_;
  const Duty& duty_;
  uint64_t told_ = 0;
};

/// Two shots. A chunk is told when the next one is on its way, or when there is nothing to sum.
template <typename R, int kVectors>
__device__ __forceinline__ void sum_chunks_in_bulk(const DirectCall& call, const Duty& duty,
                                                   ReduceArgs* sum) {
  WarpSums<R, kVectors> sums(reinterpret_cast<SumMemory*>(bulk_memory()),
                             call.args.shape.chunk_bytes);
  ToldChunks told(call, duty);
  const auto finish = [&](uint64_t steps) {
    if (steps > 0) told.tell_before(steps - 1);
    sums.finish();
    __syncthreads();
    told.tell_before(steps);
  };
  uint64_t step = 0;
#pragma unroll 1
  for (uint64_t c = duty.index; c < call.args.shape.num_chunks; c += duty.count, ++step) {
    if (are_operands_here(call, c)) {
      if (step > 0) told.tell_before(step - 1);
    } else {
      finish(step);
      if (!await_operands(call, c)) return;
    }
    set_sum(call, c, R::kBytes, sum);
    __syncthreads();
    sums.run(*sum);
  }
  __syncthreads();
  finish(step);
}

#endif

/// Of two shots' sums, those that go on to the peers in bulk: recv lies on the grid of vectors, as
/// all else does where pushes go in bulk.
__device__ __forceinline__ bool sends_sums_in_bulk(const DirectCall& call) {
  return call.args.uses_bulk && is_two_shot(call) &&
         are_vectors(reinterpret_cast<uint64_t>(call.args.recv));
}

template <typename R, int kVectors>
__device__ __forceinline__ void sum_chunks(const DirectCall& call, const Duty& duty) {
  __shared__ ReduceArgs sum;
#if __CUDA_ARCH__ >= 900
  if (sends_sums_in_bulk(call)) return sum_chunks_in_bulk<R, kVectors>(call, duty, &sum);
#endif
  uint64_t step = 0;
#pragma unroll 1
  for (uint64_t c = duty.index; c < call.args.shape.num_chunks; c += duty.count, ++step) {
    if (!await_operands(call, c)) return;
    set_sum(call, c, R::kBytes, &sum);
    __syncthreads();
    reduce_arrays<R, kVectors>(sum, block_threads());
    if (!is_two_shot(call)) continue;
    __syncthreads();
    const int to = told_by_this_thread(step);
    if (to >= 0 && to < call.size() && to != call.rank()) tell(call, to, 1, c);
  }
}

template <typename R, int kVectors>
__device__ __forceinline__ void reduce_direct(const DirectArgs& args) {
  if (!all_agree(!nvlink::has_failed(args.team))) return;
  const DirectCall call = begin_call(args);
  const Duty duty = duty_of(args.shape);
  if (duty.kind == DirectKind::kPush) {
    push_operands(call, duty);
  } else if (duty.kind == DirectKind::kTurn) {
    sum_chunks<R, kVectors>(call, duty);
  } else {
    copy_results(call, duty);
  }
  end_call(call);
}

}  // namespace braid::coll::device

/// One entry: braid_direct_reduce_<dtype>_<op>, as reduce_names.cc lists them.
#define BRAID_DIRECT_REDUCE_KERNEL(dtype, op, Format, kOp, kVectors)                             \
  extern "C" __global__ void __launch_bounds__(braid::coll::kDirectThreads)                      \
      braid_direct_reduce_##dtype##_##op(const __grid_constant__ braid::coll::DirectArgs args) { \
    using namespace braid::coll::device;                                                         \
    reduce_direct<Reduction<Format, Op::kOp>, kVectors>(args);                                   \
  }
