// All-gather, all-to-all and broadcast by packets (packets.cuh). A thread sends and receives
// packets of the same numbers: what it writes into recv in place is what it alone has read.
#include "coll/packets/bytes.cuh"

namespace braid::coll::device {

/// Copies this rank's own block, unless it is in its place already.
__device__ void copy_own(const void* from, void* to, uint64_t bytes) {
  if (from == to) return;
  for (uint64_t i = first_packet(); i < num_packets(bytes); i += packet_stride()) {
    const uint64_t offset = i * kPacketDataBytes;
    store_words(to, offset, bytes, load_words(from, offset, bytes));
  }
}

__device__ const char* block_of(const void* base, int rank, uint64_t bytes) {
  return static_cast<const char*>(base) + static_cast<uint64_t>(rank) * bytes;
}
__device__ char* block_of(void* base, int rank, uint64_t bytes) {
  return static_cast<char*>(base) + static_cast<uint64_t>(rank) * bytes;
}

/// Writes what each rank r sent to slot r into block r of recv.
__device__ void receive_blocks(const BlockCall& call) {
  const uint64_t bytes = call.args.bytes;
  const uint64_t slot = num_packets(bytes);
  const Packet* slots = call.half_of(call.rank());
  for (uint64_t i = first_packet(); i < slot; i += packet_stride()) {
    for (int first = 0; first < call.size(); first += kPacketBatch) {
      Words data[kPacketBatch];
      if (!await_packets(call, slots + i, slot, first, data)) return;
#pragma unroll
      for (int k = 0; k < kPacketBatch; ++k) {
        const int from = first + k;
        if (from >= call.size() || from == call.rank()) continue;
        store_words(block_of(call.args.recv, from, bytes), i * kPacketDataBytes, bytes, data[k]);
      }
    }
  }
}

__device__ uint64_t all_gather(const BlockCall& call) {
  const uint64_t bytes = call.args.bytes;
  const uint64_t slot = num_packets(bytes);
  for (uint64_t i = first_packet(); i < slot; i += packet_stride()) {
    const Words data = load_words(call.args.send, i * kPacketDataBytes, bytes);
    const uint64_t place = static_cast<uint64_t>(call.rank()) * slot + i;
#pragma unroll 4
    for (int turn = 1; turn < call.size(); ++turn)
      send_packet(call, call.half_of(call.peer(turn)) + place, data);
  }
  copy_own(call.args.send, block_of(call.args.recv, call.rank(), bytes), bytes);
  receive_blocks(call);
  return 0;
}

__device__ uint64_t all_to_all(const BlockCall& call) {
  const uint64_t bytes = call.args.bytes;
  const uint64_t slot = num_packets(bytes);
  for (uint64_t i = first_packet(); i < slot; i += packet_stride()) {
    const uint64_t place = static_cast<uint64_t>(call.rank()) * slot + i;
#pragma unroll 4
    for (int turn = 1; turn < call.size(); ++turn) {
      const int to = call.peer(turn);
      const void* block = block_of(call.args.send, to, bytes);
      send_packet(call, call.half_of(to) + place, load_words(block, i * kPacketDataBytes, bytes));
    }
  }
  copy_own(block_of(call.args.send, call.rank(), bytes),
           block_of(call.args.recv, call.rank(), bytes), bytes);
  receive_blocks(call);
  return 0;
}

/// Waits for one packet. False: gave up.
__device__ bool await_packet(const BlockCall& call, const Packet* at, int from, Words* data) {
  for (Patience patience;;) {
    const Packet seen = look_at(at);
    if (seen.flag_low == call.flag && seen.flag_high == call.flag) {
      *data = {seen.data_low, seen.data_high};
      return true;
    }
    if (!patience.holds(call, from, seen.flag_low)) return false;
  }
}

// A half in a broadcast: the root's packets, then a greeting per rank.

/// Every rank but the root sends a greeting to all; the root's data is its greeting. The first
/// block does it, a thread for each peer. The root hears them in its next call (hear()).
__device__ void greet(const BlockCall& call, uint64_t slot) {
  if (blockIdx.x != 0) return;
  for (int peer = static_cast<int>(threadIdx.x); peer < call.size(); peer += blockDim.x) {
    if (peer != call.rank()) send_packet(call, call.half_of(peer) + slot + call.rank(), {0, 0});
  }
}

__device__ void await_greetings(const BlockCall& call, uint64_t slot) {
  if (blockIdx.x != 0) return;
  const Packet* greetings = call.half_of(call.rank()) + slot;
  for (int peer = static_cast<int>(threadIdx.x); peer < call.size(); peer += blockDim.x) {
    Words nothing;
    if (peer == call.rank() || peer == call.args.root) continue;
    if (!await_packet(call, greetings + peer, peer, &nothing)) return;
  }
}

__device__ void send_message(const BlockCall& call, uint64_t slot) {
  for (uint64_t i = first_packet(); i < slot; i += packet_stride()) {
    const Words data = load_words(call.args.send, i * kPacketDataBytes, call.args.bytes);
#pragma unroll 4
    for (int turn = 1; turn < call.size(); ++turn)
      send_packet(call, call.half_of(call.peer(turn)) + i, data);
  }
  copy_own(call.args.send, call.args.recv, call.args.bytes);
}

__device__ void receive_message(const BlockCall& call, uint64_t slot) {
  const Packet* own = call.half_of(call.rank());
  for (uint64_t i = first_packet(); i < slot; i += packet_stride()) {
    Words data;
    if (!await_packet(call, own + i, call.args.root, &data)) return;
    store_words(call.args.recv, i * kPacketDataBytes, call.args.bytes, data);
  }
}

/// Where the root leaves the others' greetings, for PacketState::unheard.
__device__ uint64_t broadcast(const BlockCall& call) {
  const uint64_t slot = num_packets(call.args.bytes);
  if (call.rank() == call.args.root) {
    send_message(call, slot);
    return 1 + slot;
  }
  greet(call, slot);
  receive_message(call, slot);
  await_greetings(call, slot);
  return 0;
}

}  // namespace braid::coll::device

#define BRAID_PACKET_KERNEL(name)                                                  \
  extern "C" __global__ void __launch_bounds__(braid::coll::kPacketThreads, 2)     \
      braid_packets_##name(const __grid_constant__ braid::coll::PacketArgs args) { \
    using namespace braid::coll::device;                                           \
    run_call(args, [](const BlockCall& call) { return name(call); });              \
  }
BRAID_PACKET_KERNEL(all_gather)
BRAID_PACKET_KERNEL(all_to_all)
BRAID_PACKET_KERNEL(broadcast)
