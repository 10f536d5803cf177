// All-gather, all-to-all and broadcast by direct kernels (direct.cuh).
#include "coll/direct/copy_out.cuh"
#include "coll/direct/push.cuh"

namespace braid::coll::device {

/// Copies this rank's own block, unless it is in its place already; while the peers' are under way.
__device__ void copy_own(const DirectCall& call, const Duty& duty, const char* from) {
  char* to = received(call, call.block_of(call.rank()).begin);
  if (from == to) return;
#pragma unroll 1
  for (uint64_t c = duty.index; c < call.args.shape.num_chunks; c += duty.count) {
    const Span chunk = call.chunk_of(c, call.args.bytes);
    copy_chunk(to + chunk.begin, from + chunk.begin, chunk.bytes);
  }
}

__device__ void copy_blocks(const DirectCall& call, const Duty& duty, const char* own) {
  copy_own(call, duty, own);
  copy_out(call, duty, 0, -1, [&](int from) { return call.block_of(from); });
}

__device__ void all_gather(const DirectCall& call, const Duty& duty) {
  if (duty.kind == DirectKind::kPush) {
    push_to_all(call, duty);
  } else {
    copy_blocks(call, duty, sent(call, 0));
  }
}

__device__ void all_to_all(const DirectCall& call, const Duty& duty) {
  if (duty.kind == DirectKind::kPush) {
    push_to_each(call, duty, [&](int to) { return call.block_of(to); });
  } else {
    copy_blocks(call, duty, sent(call, call.block_of(call.rank()).begin));
  }
}

// A broadcast in two shots: the root sends slice i to the i-th rank behind it, which sends it to
// the others. The root needs a flag of everyone: chunk 0 of region 1, a greeting without data.

__device__ void greet_root(const DirectCall& call, const Duty& duty) {
  if (duty.index == 0 && threadIdx.x == 0) tell(call, call.args.root, 1, 0);
}

__device__ void await_greetings(const DirectCall& call, const Duty& duty) {
  const int from = static_cast<int>(threadIdx.x);
  if (duty.index != 0 || from >= call.size() || from == call.rank()) return;
  (void)wait_for_chunk(call, 1, from, 0);
}

#if __CUDA_ARCH__ >= 900

/// The chunks of our slice by number, as they land: into recv and to the other others.
struct TurnUnits {
  static constexpr bool kArrive = true;
  const DirectCall& call;
  const Span slice;

  __device__ __forceinline__ uint32_t count() const {
    return static_cast<uint32_t>(call.args.shape.num_chunks);
  }
  __device__ __forceinline__ bool is_here(uint32_t c) const {
    return has_arrived(call, 0, call.args.root, c);
  }
  __device__ __forceinline__ bool await(uint32_t c) const {
    return wait_for_chunk(call, 0, call.args.root, c);
  }
  __device__ __forceinline__ Source source(uint32_t c) const {
    const Span chunk = call.chunk_of(c, slice.bytes);
    return {call.slot(call.rank(), 0, call.args.root) + chunk.begin,
            static_cast<uint32_t>(chunk.bytes)};
  }
  template <typename Each>
  __device__ __forceinline__ void each_other(const Each& each) const {
#pragma unroll 1
    for (int turn = 1; turn < call.size(); ++turn)
      if (call.peer(turn) != call.args.root) each(call.peer(turn));
  }
  template <typename Put>
  __device__ __forceinline__ void each_target(uint32_t c, const Put& put) const {
    const uint64_t begin = call.chunk_of(c, slice.bytes).begin;
    each_other([&](int to) { put(call.slot(to, 1, call.rank()) + begin); });
    put(received(call, slice.begin + begin));
  }
  __device__ __forceinline__ void tell(uint32_t c) const {
    each_other(
        [&](int to) { nvlink::store_relaxed(call.flag(to, 1, call.rank(), c), call.epoch); });
  }
};

#endif

/// True when the block's chunks went by bulk copies. Among two there is nobody to pass them on to.
__device__ __forceinline__ bool passed_on_in_bulk(const DirectCall& call, const Span& slice) {
#if __CUDA_ARCH__ >= 900
  if (!call.args.uses_bulk || call.size() == 2) return false;
  move_and_tell(TurnUnits{call, slice}, &call.args.direct.state->next_unit[call.epoch % 2],
                call.args.shape.chunk_bytes);
  return true;
#else
  return false;
#endif
}

/// Takes the root's chunks of our slice, into recv and to the others.
__device__ void pass_on(const DirectCall& call, const Duty& duty) {
  __shared__ Targets targets;
  const int root = call.args.root;
  const Span slice = call.slice_of(call.index_behind_root(call.rank()));
  greet_root(call, duty);
  if (passed_on_in_bulk(call, slice)) return;
  uint64_t step = 0;
#pragma unroll 1
  for (uint64_t c = duty.index; c < call.args.shape.num_chunks; c += duty.count, ++step) {
    if (!await_chunk(call, 0, root, c)) return;
    const Span chunk = call.chunk_of(c, slice.bytes);
    if (threadIdx.x == 0) {
      int count = 0;
      for (int turn = 1; turn < call.size(); ++turn) {
        const int to = call.peer(turn);
        if (to != root) targets.to[count++] = call.slot(to, 1, call.rank()) + chunk.begin;
      }
      targets.to[count++] = received(call, slice.begin + chunk.begin);
      targets.count = count;
    }
    __syncthreads();
    spread_chunk(targets, call.slot(call.rank(), 0, root) + chunk.begin, chunk.bytes);
    __syncthreads();
    const int to = told_by_this_thread(step);
    if (to >= 0 && to < call.size() && to != root && to != call.rank()) tell(call, to, 1, c);
  }
}

__device__ void broadcast(const DirectCall& call, const Duty& duty) {
  const auto slice_of = [&](int of) { return call.slice_of(call.index_behind_root(of)); };
  const bool is_root = call.rank() == call.args.root;
  if (duty.kind == DirectKind::kPush) {
    if (is_root) push_to_each(call, duty, slice_of);
  } else if (duty.kind == DirectKind::kTurn) {
    if (!is_root) pass_on(call, duty);
  } else if (is_root) {
    await_greetings(call, duty);
  } else {
    copy_out(call, duty, 1, call.args.root, slice_of);
  }
}

}  // namespace braid::coll::device

#define BRAID_DIRECT_KERNEL(name)                                                 \
  extern "C" __global__ void __launch_bounds__(braid::coll::kDirectThreads)       \
      braid_direct_##name(const __grid_constant__ braid::coll::DirectArgs args) { \
    using namespace braid::coll::device;                                          \
    if (!all_agree(!braid::nvlink::has_failed(args.team))) return;                \
    const DirectCall call = begin_call(args);                                     \
    name(call, duty_of(args.shape));                                              \
    end_call(call);                                                               \
  }
BRAID_DIRECT_KERNEL(all_gather)
BRAID_DIRECT_KERNEL(all_to_all)
BRAID_DIRECT_KERNEL(broadcast)
