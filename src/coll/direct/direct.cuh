// The protocol of direct kernels, for messages too large for packets, which spend half of NVLink on
// flags, and too small for copy engines, which cost tens of microseconds before the first byte.
//
// A message is cut into slots, one per pair of ranks and region, and a slot into chunks. A block
// writes a chunk into a peer's area by plain 16-byte stores, many in flight, or by bulk copies
// (bulk.cuh, bulk_sums.cuh), then the chunk's flag, with release order; the peer waits for the
// flag, with acquire order, and copies the chunk out of its area or sums it from there. Three kinds
// of blocks work side by side, so that NVLink is busy while chunks that have arrived are taken out:
//
//   push    send operands or blocks to the peers' region 0                     wait for nothing
//   turn    sum the operands of a chunk, or take the root's; in two shots      wait for pushes
//           send the result on to the peers' region 1
//   copy    copy region 0 (all-gather, all-to-all) or region 1 into recv       wait for either
//
// Blocks of a kind take chunks in turn, or in bulk as they have room for one: any number of them is
// right, and each kind's number may differ from rank to rank. A block of one kind for all three
// would stand still at every flag.
//
// Flags    One word per (region, source, chunk) in the receiver's area, holding the epoch of the
//          last call of which that chunk has arrived. It has one writer, and only grows. It lies
//          outside the data, at the same place for every call, and is never reset.
// Epochs   DirectState::epoch counts the calls that ended on this rank. A kernel works under the
//          next number, and its last block stores it. The count is in device memory, so that a
//          replayed graph goes on counting. Even and odd epochs use different halves of the data.
//
// Nothing tears: a chunk is read after an acquire that saw its epoch or a later one; where bulk
//   copies read it, behind a fence that puts them after the acquire. The flag was released after a
//   barrier of the block that wrote the chunk, or by a lane that was told of its bulk copies' end
//   (told_units.cuh); of a sum, after a barrier behind which each lane had seen its own complete. A
//   later epoch in the flag is of a later kernel of the same source, which began after that of this
//   call had ended: no block ends before its bulk copies, so that its release covers this call's
//   chunk too, and its data is in the other half (two epochs on it cannot be, by the next
//   paragraph).
// Nothing is lost: two halves suffice. In every call every rank waits for at least one flag of
//   every peer (a slot has one chunk at least, of 0 bytes if need be; in a broadcast the other
//   ranks greet the root). So when rank p, in epoch e, writes into q's half, it has finished e - 1
//   and saw a flag of e - 1 from q; q's kernel of e - 1 was running then, so that q's kernel of
//   e - 2 had ended, and with it every read of what p now overwrites.
// No old chunk is taken for a new one: flags start at 0 and epochs at 1.
// In place: nothing is overwritten that is yet to be sent.
//   One shot        recv holds all operands: a rank flags its own push as well, after the chunk was
//                   read, and sums wait for that flag too.
//   All-to-all      a chunk is taken out only after ours for that peer was sent, which a rank flags
//                   to itself.
//   Two shots       a sum overwrites our own slice, which we send to nobody. A result of another
//                   slice exists only after its owner had our operand, chunk by chunk.
//   Reduce-scatter  a sum overwrites our own block, which we send to nobody.
//   Each thread of a sum loads an element's operands before it stores that element.
// Nothing hangs: kinds wait only for kinds that come before them, and have higher block numbers.
//   Before a turn waits it tells all that it has sent. Blocks start in the order of their numbers,
//   so where a waiting block runs, all that others may wait for have started before it; pushes end
//   by themselves, then turns, then copies. One block per GPU is enough for progress where every
//   rank has one of its own; ranks of a process that share one launch no more blocks than all find
//   a place (Device::shared_blocks()). Every wait looks at the clock and at the host's word; when
//   it ends in vain it notes it as the Fault and in Team::has_failed, the block ends, and later calls
//   of this rank do nothing.
#pragma once

#include "coll/direct/direct.h"
#include "coll/reduce/reduce_body.cuh"
#include "transport/nvlink/team.cuh"
#include "transport/nvlink/words.cuh"

namespace braid::coll::device {

inline constexpr int kDirectWarps = kDirectThreads / 32;
inline constexpr int kPushVectors = 8;  // of a thread, in flight together

enum class DirectKind { kPush, kTurn, kCopy };

struct Span {
  uint64_t begin;
  uint64_t bytes;
};

/// A call as one block sees it.
struct DirectCall {
  const DirectArgs& args;
  uint64_t epoch;
  uint64_t data_begin;  // of the half in use, from an area's start

  __device__ int rank() const { return args.team.rank; }
  __device__ int size() const { return args.team.size; }
  __device__ int num_peers() const { return size() - 1; }
  /// Peers in turn, each rank beginning with its next: no two ranks send to one peer at a time.
  __device__ int peer(int turn) const {
    const int next = rank() + turn;
    return next < size() ? next : next - size();
  }
  /// Whose chunks arrive in that turn.
  __device__ int source(int turn) const {
    const int before = rank() - turn;
    return before < 0 ? before + size() : before;
  }
  __device__ uint64_t* flag(int at, int region, int from, uint64_t chunk) const {
    const uint64_t row = static_cast<uint64_t>(region * nvlink::kMostRanks + from);
    return reinterpret_cast<uint64_t*>(args.direct.area[at]) + row * kMostDirectChunks + chunk;
  }
  __device__ char* slot(int at, int region, int from) const {
    const uint64_t index = static_cast<uint64_t>(region * size() + from);
    return reinterpret_cast<char*>(args.direct.area[at]) + data_begin +
           index * args.shape.slot_bytes;
  }
  /// Chunk number `chunk` of a part of `part_bytes`, counted from the part's start.
  __device__ Span chunk_of(uint64_t chunk, uint64_t part_bytes) const {
    const uint64_t begin = chunk * args.shape.chunk_bytes;
    if (begin >= part_bytes) return {0, 0};
    return {begin, min(args.shape.chunk_bytes, part_bytes - begin)};
  }
  /// Of an array of blocks: what the call moves of one.
  __device__ Span block_of(int of) const {
    return {static_cast<uint64_t>(of) * args.stride_bytes, args.bytes};
  }
  /// Slice `index` of the message, cut into slots.
  __device__ Span slice_of(int index) const {
    const uint64_t begin = static_cast<uint64_t>(index) * args.shape.slot_bytes;
    if (begin >= args.bytes) return {0, 0};
    return {begin, min(args.shape.slot_bytes, args.bytes - begin)};
  }
  /// In a broadcast the root owns no slice.
  __device__ int index_behind_root(int of) const {
    const int index = of - args.root - 1;
    return index < 0 ? index + size() : index;
  }
};

__device__ __forceinline__ DirectCall begin_call(const DirectArgs& args) {
  const uint64_t epoch = *const_cast<volatile uint64_t*>(&args.direct.state->epoch) + 1;
  return {args, epoch, kDirectFlagBytes + epoch % 2 * args.direct.half_bytes};
}

/// All threads of every block come here. The last block closes the call: by then every block has
/// read the epoch. It sets back the next call's units, which no kernel that runs looks at.
__device__ __forceinline__ void end_call(DirectState& state, uint64_t epoch) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicAdd(&state.blocks_done, 1U) + 1 != gridDim.x) return;
  state.blocks_done = 0;
  state.next_unit[(epoch + 1) % 2] = 0;
  state.epoch = epoch;
}
__device__ __forceinline__ void end_call(const DirectCall& call) {
  end_call(*call.args.direct.state, call.epoch);
}

/// A block's kind, and its number among the blocks of that kind.
struct Duty {
  DirectKind kind;
  uint64_t index;
  uint64_t count;
};

__device__ __forceinline__ Duty duty_of(const DirectShape& shape) {
  const uint32_t b = blockIdx.x;
  if (b < shape.push_blocks) return {DirectKind::kPush, b, shape.push_blocks};
  const uint32_t turns_end = shape.push_blocks + shape.turn_blocks;
  if (b < turns_end) return {DirectKind::kTurn, b - shape.push_blocks, shape.turn_blocks};
  return {DirectKind::kCopy, b - turns_end, shape.copy_blocks};
}

__device__ __forceinline__ Workers block_threads() { return {threadIdx.x, kDirectThreads}; }

// ---- flags ----

/// True when every thread of the block says so. A barrier of the block.
__device__ __forceinline__ bool all_agree(bool ok) { return __syncthreads_and(ok ? 1 : 0) != 0; }

/// False: gave up.
__device__ __forceinline__ bool wait_for_chunk(const DirectCall& call, int region, int from,
                                               uint64_t chunk) {
  return nvlink::wait_for(call.args.team, call.flag(call.rank(), region, from, chunk),
                          {nvlink::Wait::kChunk, from, call.epoch});
}

__device__ __forceinline__ bool has_arrived(const DirectCall& call, int region, int from,
                                            uint64_t chunk) {
  return nvlink::load_acquire(call.flag(call.rank(), region, from, chunk)) >= call.epoch;
}

/// The whole block waits for one source. False: gave up.
__device__ __forceinline__ bool await_chunk(const DirectCall& call, int region, int from,
                                            uint64_t chunk) {
  return all_agree(threadIdx.x != 0 || wait_for_chunk(call, region, from, chunk));
}

/// What lies where a chunk of `from` shall be is no longer needed: true but in place.
__device__ __forceinline__ bool was_sent(const DirectCall& call, int from, uint64_t chunk) {
  return !call.args.is_in_place || has_arrived(call, kSentRegion, from, chunk);
}
__device__ __forceinline__ bool wait_until_sent(const DirectCall& call, int from, uint64_t chunk) {
  return !call.args.is_in_place || wait_for_chunk(call, kSentRegion, from, chunk);
}

/// The thread that tells rank t of the block's step number `step`, or -1: lanes of one warp,
/// because the fence of a release stands still for a trip over NVLink; each step another warp, so
/// that the rest of the block goes on meanwhile.
__device__ __forceinline__ int told_by_this_thread(uint64_t step) {
  return threadIdx.x / 32 == step % kDirectWarps ? static_cast<int>(threadIdx.x % 32) : -1;
}

__device__ __forceinline__ void tell(const DirectCall& call, int to, int region, uint64_t chunk) {
  nvlink::store_release(call.flag(to, region, call.rank(), chunk), call.epoch);
}

// ---- bytes ----

/// Where a block writes the same bytes, in shared memory: arrays of addresses in registers would
/// spill. Set by set_targets(), good until the next all_agree() or __syncthreads().
struct Targets {
  char* to[nvlink::kMostRanks];
  int count;
};

/// Where addresses do not lie on the grid of vectors.
static __device__ __noinline__ void copy_unaligned(char* to, const char* from, uint64_t bytes) {
  nvlink::copy_by_threads({threadIdx.x, kDirectThreads}, reinterpret_cast<std::byte*>(to),
                          reinterpret_cast<const std::byte*>(from), bytes);
}

inline constexpr uint32_t kRowBytes = kDirectThreads * kVectorBytes;  // a vector of every thread

/// A thread's vectors of a chunk: one per row of kRowBytes. Offsets within a batch are constants.
struct ThreadVectors {
  Vector data[kPushVectors];
  int present;

  __device__ __forceinline__ void load(const char* from, uint32_t rows_left) {
    present = rows_left < kPushVectors ? static_cast<int>(rows_left) : kPushVectors;
#pragma unroll
    for (int u = 0; u < kPushVectors; ++u)
      if (u < present) data[u] = load_vector(from + u * kRowBytes);
  }
  __device__ __forceinline__ void store(char* to) const {
#pragma unroll
    for (int u = 0; u < kPushVectors; ++u)
      if (u < present) store_vector(to + u * kRowBytes, data[u]);
  }
};

/// How many rows have a vector of this thread, of a chunk's whole vectors.
__device__ __forceinline__ uint32_t rows_of_thread(uint64_t bytes) {
  const auto vectors = static_cast<uint32_t>(bytes / kVectorBytes);  // a chunk is below 64 GiB
  return (vectors + kDirectThreads - 1 - threadIdx.x) / kDirectThreads;
}

__device__ __forceinline__ bool are_vectors(uint64_t address_bits) {
  return address_bits % kVectorBytes == 0;
}

/// The block's threads copy any bytes anywhere.
__device__ __forceinline__ void copy_chunk(char* to, const char* from, uint64_t bytes) {
  if (!are_vectors(reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from))) {
    copy_unaligned(to, from, bytes);
    return;
  }
  uint64_t at = uint64_t{threadIdx.x} * kVectorBytes;
  const auto rest = static_cast<uint32_t>(bytes % kVectorBytes);
  if (threadIdx.x < rest) to[bytes - 1 - threadIdx.x] = from[bytes - 1 - threadIdx.x];
#pragma unroll 1
  for (uint32_t rows = rows_of_thread(bytes); rows != 0; at += kPushVectors * kRowBytes) {
    ThreadVectors vectors;
    vectors.load(from + at, rows);
    vectors.store(to + at);
    rows -= static_cast<uint32_t>(vectors.present);
  }
}

/// The same to several places; what is loaded once is stored to each.
__device__ __forceinline__ void spread_chunk(const Targets& targets, const char* from,
                                             uint64_t bytes) {
  uint64_t bits = reinterpret_cast<uint64_t>(from);
#pragma unroll 1
  for (int d = 0; d < targets.count; ++d) bits |= reinterpret_cast<uint64_t>(targets.to[d]);
  if (!are_vectors(bits)) {
#pragma unroll 1
    for (int d = 0; d < targets.count; ++d) copy_unaligned(targets.to[d], from, bytes);
    return;
  }
  uint64_t at = uint64_t{threadIdx.x} * kVectorBytes;
  const auto rest = static_cast<uint32_t>(bytes % kVectorBytes);
#pragma unroll 1
  for (int d = 0; threadIdx.x < rest && d < targets.count; ++d)
    targets.to[d][bytes - 1 - threadIdx.x] = from[bytes - 1 - threadIdx.x];
#pragma unroll 1
  for (uint32_t rows = rows_of_thread(bytes); rows != 0; at += kPushVectors * kRowBytes) {
    ThreadVectors vectors;
    vectors.load(from + at, rows);
#pragma unroll 1
    for (int d = 0; d < targets.count; ++d) vectors.store(targets.to[d] + at);
    rows -= static_cast<uint32_t>(vectors.present);
  }
}

// ---- what pushes and copies do ----

__device__ __forceinline__ const char* sent(const DirectCall& call, uint64_t offset_bytes) {
  return static_cast<const char*>(call.args.send) + offset_bytes;
}
__device__ __forceinline__ char* received(const DirectCall& call, uint64_t offset_bytes) {
  return static_cast<char*>(call.args.recv) + offset_bytes;
}

}  // namespace braid::coll::device
