// All-reduce and reduce-scatter by packets (packets.cuh). All three paths send to each owner what
// it sums, in slots of one size, and differ in what a slot holds:
//
//   one shot         everyone owns the whole message and is done with the sum
//   two shots        rank j owns slice j; it sends the sums to all, into a second array of slots
//   reduce-scatter   rank j owns block j and is done with the sum
//
// Sums are in rank order, this rank's own operand in its place. A thread works on packets of the
// same numbers in each phase, so that in place nobody overwrites what another has yet to read.
#pragma once

#include "coll/packets/bytes.cuh"
#include "coll/reduce/each_op.cuh"
#include "coll/reduce/words.cuh"

namespace braid::coll::device {

/// Which part of send goes to each owner, and where its sum belongs in recv.
struct Slices {
  uint64_t slot;           // packets from one rank to another
  uint64_t stride_bytes;   // from one owner's part of send to the next one's
  uint64_t message_bytes;  // of send or, in a reduce-scatter, of one block of it
  bool is_scatter;
  bool is_two_shot;

  __device__ explicit Slices(const BlockCall& call) {
    const uint64_t ranks = static_cast<uint64_t>(call.size());
    message_bytes = call.args.bytes;
    is_scatter = call.args.path == PacketPath::kReduceScatter;
    is_two_shot = call.args.path == PacketPath::kTwoShot;
    slot = num_packets(message_bytes);
    if (is_two_shot) slot = (slot + ranks - 1) / ranks;
    stride_bytes = is_scatter ? message_bytes : is_two_shot ? slot * kPacketDataBytes : 0;
  }
  __device__ uint64_t begin(int owner) const { return static_cast<uint64_t>(owner) * stride_bytes; }
  /// Where an owner's part ends at the latest, counted as begin() does.
  __device__ uint64_t end(int owner) const {
    return is_scatter ? begin(owner) + message_bytes : message_bytes;
  }
  __device__ Words operand(const BlockCall& call, int owner, uint64_t i) const {
    return load_words(call.args.send, begin(owner) + i * kPacketDataBytes, end(owner));
  }
  __device__ void store_result(const BlockCall& call, int owner, uint64_t i,
                               const Words& sum) const {
    const uint64_t begin_bytes = is_scatter ? 0 : begin(owner);
    store_words(call.args.recv, begin_bytes + i * kPacketDataBytes, message_bytes, sum);
  }
};

__device__ __forceinline__ void send_operands(const BlockCall& call, const Slices& slices) {
  const uint64_t own_slot = static_cast<uint64_t>(call.rank()) * slices.slot;
  for (uint64_t i = first_packet(); i < slices.slot; i += packet_stride()) {
#pragma unroll 4
    for (int turn = 1; turn < call.size(); ++turn) {
      const int owner = call.peer(turn);
      send_packet(call, call.half_of(owner) + own_slot + i, slices.operand(call, owner, i));
    }
  }
}

/// The sum of everyone's packet i. False: gave up.
template <typename R>
__device__ __forceinline__ bool sum_packets(const BlockCall& call, const Slices& slices, uint64_t i,
                                            Words* sum) {
  constexpr int kWords = kPacketDataBytes / 4;
  typename R::Acc acc[kElementsIn<R, kWords>];
  const Words own = slices.operand(call, call.rank(), i);
  const Packet* slots = call.half_of(call.rank()) + i;
#pragma unroll 1
  for (int first = 0; first < call.size(); first += kPacketBatch) {
    Words data[kPacketBatch];
    if (!await_packets(call, slots, slices.slot, first, data)) return false;
#pragma unroll
    for (int k = 0; k < kPacketBatch; ++k) {
      if (first + k >= call.size()) continue;
      const bool is_own = first + k == call.rank();
      const uint32_t words[kWords] = {is_own ? own.low : data[k].low,
                                      is_own ? own.high : data[k].high};
      if (k == 0 && first == 0) {
        unpack<R, kWords>(words, acc);
      } else {
        combine<R, kWords>(words, acc);
      }
    }
  }
  uint32_t words[kWords] = {own.low, own.high};
  if (call.size() > 1) pack<R, kWords>(acc, call.size(), words);
  *sum = {words[0], words[1]};
  return true;
}

/// Slots of sums lie behind the slots of operands.
__device__ __forceinline__ uint64_t sums_begin(const BlockCall& call, const Slices& slices) {
  return static_cast<uint64_t>(call.size()) * slices.slot;
}

template <typename R>
__device__ __forceinline__ bool sum_own(const BlockCall& call, const Slices& slices) {
  const uint64_t place =
      sums_begin(call, slices) + static_cast<uint64_t>(call.rank()) * slices.slot;
  for (uint64_t i = first_packet(); i < slices.slot; i += packet_stride()) {
    Words sum;
    if (!sum_packets<R>(call, slices, i, &sum)) return false;
    if (slices.is_two_shot) {
#pragma unroll 4
      for (int turn = 1; turn < call.size(); ++turn)
        send_packet(call, call.half_of(call.peer(turn)) + place + i, sum);
    }
    slices.store_result(call, call.rank(), i, sum);
  }
  return true;
}

__device__ __forceinline__ void receive_sums(const BlockCall& call, const Slices& slices) {
  const Packet* slots = call.half_of(call.rank()) + sums_begin(call, slices);
  for (uint64_t i = first_packet(); i < slices.slot; i += packet_stride()) {
#pragma unroll 1
    for (int first = 0; first < call.size(); first += kPacketBatch) {
      Words data[kPacketBatch];
      if (!await_packets(call, slots + i, slices.slot, first, data)) return;
#pragma unroll
      for (int k = 0; k < kPacketBatch; ++k) {
        const int owner = first + k;
        if (owner >= call.size() || owner == call.rank()) continue;
        slices.store_result(call, owner, i, data[k]);
      }
    }
  }
}

template <typename R>
__device__ __forceinline__ void reduce_packets(const PacketArgs& args) {
  run_call(args, [](const BlockCall& call) {
    const Slices slices(call);
    send_operands(call, slices);
    if (sum_own<R>(call, slices) && slices.is_two_shot) receive_sums(call, slices);
    return uint64_t{0};
  });
}

}  // namespace braid::coll::device

/// One entry: braid_packets_reduce_<dtype>_<op>, as reduce_names.cc lists them.
#define BRAID_PACKET_REDUCE_KERNEL(dtype, op, Format, kOp)                                        \
  extern "C" __global__ void __launch_bounds__(braid::coll::kPacketThreads, 2)                    \
      braid_packets_reduce_##dtype##_##op(const __grid_constant__ braid::coll::PacketArgs args) { \
    using namespace braid::coll::device;                                                          \
    reduce_packets<Reduction<Format, Op::kOp>>(args);                                             \
  }
