// How direct kernels take what peers sent out of this rank's area, into recv (direct.cuh): a chunk
// of one peer a time, by the whole block, or by bulk copies: in two shots, where copies have to
// keep up with NVLink beside pushes and turns, and in calls that last, where few blocks shall do.
// In bulk a block copies 49 GB/s, by plain loads and stores 25 to 35, and stands still at every
// flag.
#pragma once

#include "coll/direct/bulk.cuh"

namespace braid::coll::device {

#if __CUDA_ARCH__ >= 900

/// For a BulkMover: every so many, in the order in which they arrive.
template <typename PartOf>
struct CopyUnits {
  const DirectCall& call;
  const Duty& duty;
  const PartOf& part_of;
  int region;
  int but;
  uint32_t num_peers;

  __device__ __forceinline__ uint32_t number(uint32_t unit) const {
    const auto blocks = static_cast<uint32_t>(duty.count);
    return static_cast<uint32_t>(duty.index) + (threadIdx.x / 32 + unit * kBulkMovers) * blocks;
  }
  __device__ __forceinline__ bool take(uint32_t unit) const {
    return number(unit) < static_cast<uint32_t>(call.args.shape.num_chunks) * num_peers;
  }
  __device__ __forceinline__ uint32_t chunk_of(uint32_t unit) const {
    return number(unit) / num_peers;
  }
  __device__ __forceinline__ int from(uint32_t unit) const {
    return call.source(static_cast<int>(number(unit) % num_peers) + 1);
  }
  __device__ __forceinline__ Span chunk(uint32_t unit) const {
    if (from(unit) == but) return {0, 0};
    return call.chunk_of(chunk_of(unit), part_of(from(unit)).bytes);
  }
  __device__ __forceinline__ Source source(uint32_t unit) const {
    const Span span = chunk(unit);
    return {call.slot(call.rank(), region, from(unit)) + span.begin,
            static_cast<uint32_t>(span.bytes)};
  }
  __device__ __forceinline__ bool is_here(uint32_t unit) const {
    return from(unit) == but || may_load(has_arrived(call, region, from(unit), chunk_of(unit)) &&
                                         was_sent(call, from(unit), chunk_of(unit)));
  }
  __device__ __forceinline__ bool await(uint32_t unit) const {
    return may_load(wait_for_chunk(call, region, from(unit), chunk_of(unit)) &&
                    wait_until_sent(call, from(unit), chunk_of(unit)));
  }
  template <typename Put>
  __device__ __forceinline__ void each_target(uint32_t unit, const Put& put) const {
    put(received(call, part_of(from(unit)).begin + chunk(unit).begin));
  }
  __device__ __forceinline__ void end(uint32_t unit) const {
    const Source all = source(unit);
    each_target(unit, [&](char* to) { all.copy_rest(to); });
  }
};

#endif

/// True when the block's chunks went by bulk copies. Slices begin on the grid of vectors as recv
/// does; blocks where they are whole vectors.
template <typename PartOf>
__device__ __forceinline__ bool copied_in_bulk(const DirectCall& call, const Duty& duty, int region,
                                               int but, const PartOf& part_of) {
#if __CUDA_ARCH__ >= 900
  if (!call.args.uses_bulk || !call.args.shape.copies_in_bulk) return false;
  const bool has_blocks = call.args.shape.path == PacketPath::kCopy;
  const uint64_t stride = has_blocks ? call.args.stride_bytes : 0;
  if (!are_vectors(reinterpret_cast<uint64_t>(call.args.recv) | stride)) return false;
  if (!is_mover()) return true;
  CopyUnits<PartOf> units{call,   duty, part_of,
                          region, but,  static_cast<uint32_t>(call.num_peers())};
  move_in_bulk(units, call.args.shape.chunk_bytes);
  return true;
#else
  return false;
#endif
}

/// What every peer but `but` sent into the region, to where part_of(peer) is in recv.
template <typename PartOf>
__device__ __forceinline__ void copy_out(const DirectCall& call, const Duty& duty, int region,
                                         int but, const PartOf& part_of) {
  if (copied_in_bulk(call, duty, region, but, part_of)) return;
  const auto num_peers = static_cast<uint64_t>(call.num_peers());
  const uint64_t units = call.args.shape.num_chunks * num_peers;
#pragma unroll 1
  for (uint64_t unit = duty.index; unit < units; unit += duty.count) {
    const uint64_t c = unit / num_peers;
    const int from = call.source(static_cast<int>(unit % num_peers) + 1);
    if (from == but) continue;
    if (!all_agree(threadIdx.x != 0 ||
                   (wait_for_chunk(call, region, from, c) && wait_until_sent(call, from, c))))
      return;
    const Span part = part_of(from);
    const Span chunk = call.chunk_of(c, part.bytes);
    copy_chunk(received(call, part.begin + chunk.begin),
               call.slot(call.rank(), region, from) + chunk.begin, chunk.bytes);
  }
}

}  // namespace braid::coll::device
