// All-reduce and reduce-scatter by lines (lines.cuh); the paths are those of packets
// (packets/reduce_body.cuh), in rows. Sums are in rank order, this rank's own operand in its place.
// Where a lane holds a flag, its second half is summed too and thrown away.
#pragma once

#include "coll/lines/lines.cuh"
#include "coll/lines/wide.cuh"
#include "coll/reduce/each_op.cuh"

namespace braid::coll::device {

/// Of a warp, in flight together. Four made four times the code and a call of 16 KiB 0.8 us longer.
inline constexpr int kSumRows = 2;

/// Which part of send goes to each owner, and where its sum belongs in recv.
struct RowSlices {
  uint64_t slot;           // rows from one rank to another
  uint64_t stride_bytes;   // from one owner's part of send to the next one's
  uint64_t message_bytes;  // of send or, in a reduce-scatter, of one block of it
  bool is_scatter;
  bool is_two_shot;

  __device__ explicit RowSlices(const BlockCall& call) {
    const uint64_t ranks = static_cast<uint64_t>(call.size());
    message_bytes = call.args.bytes;
    is_scatter = call.args.path == PacketPath::kReduceScatter;
    is_two_shot = call.args.path == PacketPath::kTwoShot;
    slot = num_rows(message_bytes);
    if (is_two_shot) slot = (slot + ranks - 1) / ranks;
    stride_bytes = is_scatter ? message_bytes : is_two_shot ? slot * kRowDataBytes : 0;
  }
  template <typename Byte>
  __device__ ArrayPart<Byte> part(Byte* base, int owner) const {
    const uint64_t begin = static_cast<uint64_t>(owner) * stride_bytes;
    if (is_scatter) return {base + begin, message_bytes};
    if (begin >= message_bytes) return {base, 0};
    const uint64_t left = message_bytes - begin;
    return {base + begin, is_two_shot ? min(left, stride_bytes) : left};
  }
  __device__ ArrayPart<const char> operand(const BlockCall& call, int owner) const {
    return part(static_cast<const char*>(call.args.send), owner);
  }
  __device__ ArrayPart<char> result(const BlockCall& call, int owner) const {
    char* const recv = static_cast<char*>(call.args.recv);
    return is_scatter ? ArrayPart<char>{recv, message_bytes} : part(recv, owner);
  }
  __device__ uint64_t operands_of(int rank) const { return static_cast<uint64_t>(rank) * slot; }
  /// Sums lie behind the operands.
  __device__ uint64_t sums_of(const BlockCall& call, int owner) const {
    return static_cast<uint64_t>(call.size() + owner) * slot;
  }
};

__device__ __forceinline__ void send_operands(const BlockCall& call, const RowSlices& slices,
                                              const Rows& rows) {
  Vector data[kSumRows];
#pragma unroll 1
  for (int turn = 1; turn < call.size(); ++turn) {
    const int owner = call.peer(turn);
    if (turn == 1 || slices.stride_bytes != 0) load_rows(slices.operand(call, owner), rows, data);
    send_rows(call, owner, slices.operands_of(call.rank()), rows, data);
  }
}

/// Everyone's operands of the rows, summed. False: gave up.
template <typename R>
__device__ __forceinline__ bool sum_rows(const BlockCall& call, const RowSlices& slices,
                                         const Rows& rows, Vector (&sum)[kSumRows]) {
  typename R::Acc acc[kSumRows][kElementsIn<R, kVectorWords>];
  Vector own[kSumRows];
  load_rows(slices.operand(call, call.rank()), rows, own);
#pragma unroll 1
  for (int from = 0; from < call.size(); ++from) {
    Vector data[kSumRows];
    if (from == call.rank()) {
#pragma unroll
      for (int u = 0; u < kSumRows; ++u) data[u] = own[u];
    } else if (!receive_rows(call, from, slices.operands_of(from), rows, data)) {
      return false;
    }
#pragma unroll
    for (int u = 0; u < kSumRows; ++u) {
      if (u >= rows.present) continue;
      if (from == 0) {
        unpack<R, kVectorWords>(data[u].words, acc[u]);
      } else {
        combine<R, kVectorWords>(data[u].words, acc[u]);
      }
    }
  }
#pragma unroll
  for (int u = 0; u < kSumRows; ++u)
    if (u < rows.present) pack<R, kVectorWords>(acc[u], call.size(), sum[u].words);
  return true;
}

template <typename R>
__device__ __forceinline__ bool sum_own(const BlockCall& call, const RowSlices& slices,
                                        const Rows& rows) {
  Vector sum[kSumRows];
  if (!sum_rows<R>(call, slices, rows, sum)) return false;
  if (slices.is_two_shot) {
#pragma unroll 1
    for (int turn = 1; turn < call.size(); ++turn)
      send_rows(call, call.peer(turn), slices.sums_of(call, call.rank()), rows, sum);
  }
  store_rows(slices.result(call, call.rank()), rows, sum);
  return true;
}

__device__ __forceinline__ bool receive_sums(const BlockCall& call, const RowSlices& slices,
                                             const Rows& rows) {
#pragma unroll 1
  for (int turn = 1; turn < call.size(); ++turn) {
    const int owner = call.source(turn);
    Vector data[kSumRows];
    if (!receive_rows(call, owner, slices.sums_of(call, owner), rows, data)) return false;
    store_rows(slices.result(call, owner), rows, data);
  }
  return true;
}

// ---- among many ranks ----

__device__ __forceinline__ void send_operands_wide(const BlockCall& call, const RowSlices& slices,
                                                   uint64_t row) {
#pragma unroll 1
  for (int first = 0; first < call.size(); first += kPeersAtOnce) {
    RowOfEach<kPeersAtOnce> data;
    load_row_of_each(
        call, first, [&](int owner) { return slices.operand(call, owner); }, row, data);
    send_row_of_each(call, first, [&](int) { return slices.operands_of(call.rank()); }, row, data);
  }
}

template <typename R>
__device__ __forceinline__ bool sum_own_wide(const BlockCall& call, const RowSlices& slices,
                                             uint64_t row) {
  const auto waits_for = [&](int from) { return from != call.rank(); };
  const auto slot_of = [&](int from) { return slices.operands_of(from); };
  typename R::Acc acc[kElementsIn<R, kVectorWords>];
  const Vector own = load_lane(slices.operand(call, call.rank()), row);
#pragma unroll 1
  for (int first = 0; first < call.size(); first += kSummedAtOnce) {
    RowOfEach<kSummedAtOnce> data;
    if (!receive_row_of_each(call, first, waits_for, slot_of, row, data)) return false;
#pragma unroll
    for (int k = 0; k < kSummedAtOnce; ++k) {
      if (first + k >= call.size()) continue;
      if (first + k == call.rank()) data[k] = own;
      if (first + k == 0) {
        unpack<R, kVectorWords>(data[k].words, acc);
      } else {
        combine<R, kVectorWords>(data[k].words, acc);
      }
    }
  }
  Vector sum;
  pack<R, kVectorWords>(acc, call.size(), sum.words);
  if (slices.is_two_shot) {
    const Rows rows{row, 1};
    const Vector sums[1] = {sum};
#pragma unroll 1
    for (int turn = 1; turn < call.size(); ++turn)
      send_rows(call, call.peer(turn), slices.sums_of(call, call.rank()), rows, sums);
  }
  store_lane(slices.result(call, call.rank()), row, sum);
  return true;
}

template <typename R>
__device__ __forceinline__ void reduce_wide(const BlockCall& call, const RowSlices& slices) {
  const auto send = [&](const Rows& rows) { send_operands_wide(call, slices, rows.first); };
  const auto receive = [&](const Rows& rows) { return sum_own_wide<R>(call, slices, rows.first); };
  const auto finish = [&](const Rows& rows) {
    const auto slot_of = [&](int owner) { return slices.sums_of(call, owner); };
    const auto place_of = [&](int owner) { return slices.result(call, owner); };
    return !slices.is_two_shot || take_rows(call, -1, slot_of, place_of, rows.first);
  };
  for_rows<1>(slices.slot, send, receive, finish);
}

template <typename R>
__device__ __forceinline__ void reduce_few(const BlockCall& call, const RowSlices& slices) {
  const auto send = [&](const Rows& rows) { send_operands(call, slices, rows); };
  const auto receive = [&](const Rows& rows) { return sum_own<R>(call, slices, rows); };
  const auto finish = [&](const Rows& rows) {
    return !slices.is_two_shot || receive_sums(call, slices, rows);
  };
  for_rows<kSumRows>(slices.slot, send, receive, finish);
}

template <typename R>
__device__ __forceinline__ void reduce_lines(const PacketArgs& args) {
  const Before before = look_before(args);
  if (warp_sees_failure(before)) return;
  const BlockCall call = begin_call(args, before);
  const RowSlices slices(call);
  if (is_wide(call.size())) {
    reduce_wide<R>(call, slices);
  } else {
    reduce_few<R>(call, slices);
  }
  end_call(call);
}

}  // namespace braid::coll::device

/// One entry: braid_lines_reduce_<dtype>_<op>, as reduce_names.cc lists them.
#define BRAID_LINE_REDUCE_KERNEL(dtype, op, Format, kOp)                                        \
  extern "C" __global__ void __launch_bounds__(braid::coll::kLineThreads)                       \
      braid_lines_reduce_##dtype##_##op(const __grid_constant__ braid::coll::PacketArgs args) { \
    using namespace braid::coll::device;                                                        \
    reduce_lines<Reduction<Format, Op::kOp>>(args);                                             \
  }
