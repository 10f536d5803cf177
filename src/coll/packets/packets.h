// Small messages by packets: what the kernels are told, how their memory is laid out and how many
// blocks to launch. The protocol, and why it is right, is told in packets.cuh.
//
// Entries, all with PacketArgs: braid_packets_all_gather, braid_packets_all_to_all,
// braid_packets_broadcast, and per dtype and op packet_reduce_kernel_name() (reduce_names.h), which
// is all-reduce and reduce-scatter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan/op.h"
#include "transport/nvlink/team.h"

namespace braid::coll {

/// 8 bytes of data and the call's number twice, because 8 bytes are what never tears.
struct alignas(16) Packet {
  uint32_t data_low;
  uint32_t flag_low;
  uint32_t data_high;
  uint32_t flag_high;
};
static_assert(sizeof(Packet) == 16);
inline constexpr uint64_t kPacketDataBytes = 8;

/// What NVLink carries in the time of one more trip, about 2 us at 300 GB/s: an estimate, to be
/// replaced by a measured crossing of one shot and two.
inline constexpr uint64_t kTripBytes = uint64_t{600} << 10;

/// Threads in a thread block, and the most thread blocks of one kernel.
inline constexpr uint32_t kPacketThreads = 256;
inline constexpr uint32_t kMostPacketBlocks = 32;

/// A rank's own record of its calls, in its own device memory.
struct PacketState {
  uint64_t epoch;        // of the last call that ended; 0 before the first
  uint32_t blocks_done;  // of the call that runs; 0 between calls
  uint32_t unused;
  uint64_t unheard;  // greetings of the last call that its root left: 1 + the first one's place
  uint64_t unused_too;
};
static_assert(sizeof(PacketState) == 32);

/// Where packets go. All zero before the first call, and once more to start again after a failure.
struct PacketArea {
  std::byte* area[nvlink::kMostRanks];  // of every rank, as this GPU addresses it; 16-byte aligned
  PacketState* state;                   // of this rank
  uint64_t capacity_bytes;              // of each area; the same on all ranks, a multiple of 32
};

enum class PacketPath : int32_t {
  kCopy = 0,           // all-gather, all-to-all, broadcast
  kOneShot = 1,        // all-reduce: everyone sends everything to everyone and sums it all
  kTwoShot = 2,        // all-reduce: slices to their owners, sums back
  kReduceScatter = 3,  // blocks to their owners
};

/// bytes    all-reduce, broadcast: the message; all-gather: a rank's block of recv;
///          reduce-scatter: a rank's block of send; all-to-all: a block of send and of recv.
/// Arrays   this GPU's memory, any alignment. In place: all-reduce and broadcast send == recv,
///          all-gather send == recv + rank * bytes, reduce-scatter recv == send + rank * bytes.
///          Otherwise send and recv do not overlap. Broadcast reads send on the root alone.
/// Calls    every rank launches the same calls in the same order, with equal bytes, path, root,
///          blocks and threads, one at a time (a stream's order). Replayed graphs are calls.
struct PacketArgs {
  nvlink::Team team;
  PacketArea packets;
  const void* send;
  void* recv;
  uint64_t bytes;
  PacketPath path;
  int32_t root;
};

struct PacketShape {
  PacketPath path;
  uint32_t num_blocks;
  uint32_t num_threads;
};

/// How to launch a call of `bytes` as PacketArgs counts them. Depends on nothing else, so that all
/// ranks choose alike.
PacketShape packets_shape(plan::Op op, uint64_t bytes, int num_ranks) noexcept;

/// What that call needs of PacketArea::capacity_bytes.
uint64_t packet_call_bytes(plan::Op op, uint64_t bytes, int num_ranks) noexcept;

/// A capacity for every call whose larger buffer, as all ranks' blocks, has at most max_bytes.
uint64_t packet_area_bytes(uint64_t max_bytes, int num_ranks) noexcept;

}  // namespace braid::coll
