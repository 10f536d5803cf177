// How direct kernels send chunks to the peers' region 0 (direct.cuh): by bulk copies where the call
// allows them (told_units.cuh), by plain stores of the whole block elsewhere, which takes every
// duty.count-th unit: a chunk for one peer or for all.
#pragma once

#include "coll/direct/told_units.cuh"

namespace braid::coll::device {

#if __CUDA_ARCH__ >= 900

/// By number: chunk by chunk, and of a chunk peer by peer where each gets its own.
template <bool kToAll, typename PartOf>
struct PushUnits {
  static constexpr bool kArrive = false;
  const DirectCall& call;
  const PartOf& part_of;
  uint32_t num_peers;

  __device__ __forceinline__ uint32_t count() const {
    const auto num_chunks = static_cast<uint32_t>(call.args.shape.num_chunks);
    return kToAll ? num_chunks : num_chunks * num_peers;
  }
  __device__ __forceinline__ uint32_t chunk_of(uint32_t number) const {
    return kToAll ? number : number / num_peers;
  }
  __device__ __forceinline__ int to(uint32_t number) const {
    return call.peer(static_cast<int>(number % num_peers) + 1);
  }
  __device__ __forceinline__ Source source(uint32_t number) const {
    Span part{0, call.args.bytes};
    if constexpr (!kToAll) part = part_of(to(number));
    const Span chunk = call.chunk_of(chunk_of(number), part.bytes);
    return {sent(call, part.begin + chunk.begin), static_cast<uint32_t>(chunk.bytes)};
  }
  template <typename Put>
  __device__ __forceinline__ void each_target(uint32_t number, const Put& put) const {
    const uint64_t begin = chunk_of(number) * call.args.shape.chunk_bytes;
    if constexpr (kToAll) {
#pragma unroll 1
      for (int turn = 1; turn < call.size(); ++turn)
        put(call.slot(call.peer(turn), 0, call.rank()) + begin);
    } else {
      put(call.slot(to(number), 0, call.rank()) + begin);
    }
  }
  __device__ __forceinline__ void tell(uint32_t number) const {
    const uint32_t c = chunk_of(number);
    if constexpr (kToAll) {
#pragma unroll 1
      for (int at = 0; at < call.size(); ++at)
        nvlink::store_relaxed(call.flag(at, 0, call.rank(), c), call.epoch);
    } else {
      nvlink::store_relaxed(call.flag(to(number), 0, call.rank(), c), call.epoch);
      if (call.args.is_in_place)
        nvlink::store_relaxed(call.flag(call.rank(), kSentRegion, to(number), c), call.epoch);
    }
  }
};

#endif

/// True when the block's units went by bulk copies.
template <bool kToAll, typename PartOf>
__device__ __forceinline__ bool pushed_in_bulk(const DirectCall& call, const PartOf& part_of) {
#if __CUDA_ARCH__ >= 900
  if (!call.args.uses_bulk) return false;
  const PushUnits<kToAll, PartOf> units{call, part_of, static_cast<uint32_t>(call.num_peers())};
  move_and_tell(units, &call.args.direct.state->next_unit[call.epoch % 2],
                call.args.shape.chunk_bytes);
  return true;
#else
  return false;
#endif
}

/// All of send to everyone. Flags our own reading as well.
__device__ __forceinline__ void push_to_all(const DirectCall& call, const Duty& duty) {
  if (pushed_in_bulk<true>(call, 0)) return;
  __shared__ Targets targets;
  uint64_t step = 0;
#pragma unroll 1
  for (uint64_t c = duty.index; c < call.args.shape.num_chunks; c += duty.count, ++step) {
    const Span chunk = call.chunk_of(c, call.args.bytes);
    const int turn = static_cast<int>(threadIdx.x) + 1;
    if (turn < call.size())
      targets.to[turn - 1] = call.slot(call.peer(turn), 0, call.rank()) + chunk.begin;
    if (threadIdx.x == 0) targets.count = call.num_peers();
    __syncthreads();
    spread_chunk(targets, sent(call, chunk.begin), chunk.bytes);
    __syncthreads();
    const int to = told_by_this_thread(step);
    if (to >= 0 && to < call.size()) tell(call, to, 0, c);
  }
}

/// Part t of send to peer t; part_of(t) says where it is.
template <typename PartOf>
__device__ __forceinline__ void push_to_each(const DirectCall& call, const Duty& duty,
                                             const PartOf& part_of) {
  if (pushed_in_bulk<false>(call, part_of)) return;
  const auto num_peers = static_cast<uint64_t>(call.num_peers());
  const uint64_t units = call.args.shape.num_chunks * num_peers;
  uint64_t step = 0;
#pragma unroll 1
  for (uint64_t unit = duty.index; unit < units; unit += duty.count, ++step) {
    const uint64_t c = unit / num_peers;
    const int to = call.peer(static_cast<int>(unit % num_peers) + 1);
    const Span part = part_of(to);
    const Span chunk = call.chunk_of(c, part.bytes);
    copy_chunk(call.slot(to, 0, call.rank()) + chunk.begin, sent(call, part.begin + chunk.begin),
               chunk.bytes);
    __syncthreads();
    const int told = told_by_this_thread(step);
    if (told == 0) tell(call, to, 0, c);
    if (told == 1 && call.args.is_in_place)
      nvlink::store_release(call.flag(call.rank(), kSentRegion, to, c), call.epoch);
  }
}

}  // namespace braid::coll::device
