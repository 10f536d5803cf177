// All-reduce and reduce-scatter by direct kernels (direct.cuh). Sums are those of the reduce
// kernels, a chunk a time: in rank order, this rank's own operand where it is.
#pragma once

#include "coll/direct/push.cuh"

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
  (void)copy_out(call, duty, 1, -1, [&](int owner) { return call.slice_of(owner); });
}

/// Everyone's operands of the chunk have arrived; in one shot, ours was read. False: gave up.
__device__ __forceinline__ bool await_operands(const DirectCall& call, uint64_t chunk) {
  const int from = static_cast<int>(threadIdx.x);
  bool ok = true;
  if (from < call.size() && (from != call.rank() || is_one_shot(call)))
    ok = wait_for_chunk(call, 0, from, chunk);
  return all_agree(ok);
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

template <typename R, int kVectors>
__device__ __forceinline__ void sum_chunks(const DirectCall& call, const Duty& duty) {
  __shared__ ReduceArgs sum;
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
#define BRAID_DIRECT_REDUCE_KERNELS(dtype, Format, kVectors)       \
  BRAID_DIRECT_REDUCE_KERNEL(dtype, sum, Format, kSum, kVectors)   \
  BRAID_DIRECT_REDUCE_KERNEL(dtype, prod, Format, kProd, kVectors) \
  BRAID_DIRECT_REDUCE_KERNEL(dtype, max, Format, kMax, kVectors)   \
  BRAID_DIRECT_REDUCE_KERNEL(dtype, min, Format, kMin, kVectors)   \
  BRAID_DIRECT_REDUCE_KERNEL(dtype, avg, Format, kAvg, kVectors)
