// The protocol of packets, for messages so small that one trip over NVLink is most of the time.
//
// A packet {4 data bytes, flag, 4 data bytes, flag} is written to the receiver's area by one
// 16-byte store and polled there by 16-byte loads. The flag is the call's epoch: a receiver that
// sees it has the data in the same register, so that data needs no fence, no counter and no second
// trip. The receiver of a packet at a place is known from the shape of the call alone; nobody asks
// for a packet and nobody confirms one.
//
// Areas    Each rank's area has two halves, used by even and by odd epochs. A half is an array of
//          packets, cut differently by each call: packets lie on a 16-byte grid whatever the cut,
//          so that a word which was a flag is a flag for ever, and data is never read as one.
// Epochs   PacketState::epoch counts the calls that ended on this rank. A kernel reads it, works
//          under the next number, and its last block stores that number. The count is in device
//          memory, so that a replayed graph goes on counting.
//
// Nothing tears: both 8-byte words of a packet carry the flag, and aligned 8-byte words are
//   written and read whole. A packet counts only when both flags are the call's.
// Nothing is lost: two halves suffice. Before a rank sends anything in epoch e it has had a packet
//   of e - 1 from every peer (empty messages and slices send packets without data; in a broadcast
//   the other ranks greet each other and the root). So when rank p, in epoch e, writes into q's
//   half, q's kernel of e - 1 had begun, so its kernel of e - 2 had ended, and with it every read
//   of what p now overwrites. And no packet of epoch e - 2 is still on its way to be written over
//   one of e: q had read all that was sent to it in e - 2.
// The root of a broadcast waits for nobody: its call ends when its data is on its way, whether or
//   not the others have come to theirs, as a program may expect that has used NCCL. It leaves the
//   greetings unheard, and its next call of packets hears them before it sends (hear()).
// No old packet is taken for a new one: areas start zeroed and a flag is never 0; what lies in a
//   half is from e - 2 or earlier. Flags are the low 32 bits of the epoch, so that a place would
//   have to be left unwritten for exactly 2^32 calls and then be read.
// Nothing hangs: a block sends all that it can before it waits, and waits only for the block of its
//   own number on other ranks (or, in hear(), for the first one of the call before). Where every
//   rank has a GPU of its own, blocks need not be resident together. Where ranks share one, the
//   host launches no more than all find a place (Device::shared_blocks()): a rank's blocks that
//   wait would keep out those of another that they wait for. Every wait looks at the clock and at
//   the host's word. A wait that ends without its packet notes it as the Fault and
//   in Team::has_failed, the thread skips its remaining work, and later calls of this rank do
//   nothing.
//   The fast path reads no host memory: that costs a microsecond, a fifth of the whole call.
#pragma once

#include "coll/packets/packets.h"
#include "transport/nvlink/team.cuh"

namespace braid::coll::device {

inline constexpr int kPacketBatch = 8;  // peers whose packets are polled side by side

struct Words {
  uint32_t low;
  uint32_t high;
};

/// A call as one block sees it.
struct BlockCall {
  const PacketArgs& args;
  uint64_t epoch;
  uint32_t flag;
  uint64_t half_bytes;  // from an area's start to the half in use

  __device__ int rank() const { return args.team.rank; }
  __device__ int size() const { return args.team.size; }
  __device__ Packet* half_of(int to) const {
    return reinterpret_cast<Packet*>(args.packets.area[to] + half_bytes);
  }
  /// Peers in turn, each rank beginning with its next: no two ranks send to one peer at a time.
  __device__ int peer(int turn) const {
    const int next = rank() + turn;
    return next < size() ? next : next - size();
  }
  /// Who sends to us in that turn.
  __device__ int source(int turn) const {
    const int before = rank() - turn;
    return before < 0 ? before + size() : before;
  }
};

/// The epoch after `epoch`: flags are never 0, and epochs that follow each other use both halves.
__device__ __forceinline__ uint64_t next_epoch(uint64_t epoch) {
  const uint64_t next = epoch + 1;
  return static_cast<uint32_t>(next) != 0 ? next : next + 2;
}

/// What earlier calls left. Both words are asked for before one is looked at: a way to the second
/// level cache and back is a tenth of the shortest call.
struct Before {
  uint64_t epoch;
  uint64_t unheard;  // as in PacketState
  bool has_failed;
};

__device__ __forceinline__ Before look_before(const PacketArgs& args) {
  const volatile PacketState* state = args.packets.state;
  const bool has_failed = nvlink::has_failed(args.team);
  return {state->epoch, state->unheard, has_failed};
}

__device__ __forceinline__ BlockCall begin_call(const PacketArgs& args, const Before& before) {
  const uint64_t epoch = next_epoch(before.epoch);
  return {args, epoch, static_cast<uint32_t>(epoch), epoch % 2 * (args.packets.capacity_bytes / 2)};
}

/// All threads of every block come here. The last block closes the call: by then every block has
/// read what was before. No fence: nothing but the counter passes between blocks, and a fence would
/// wait for the peers to have taken all packets.
__device__ __forceinline__ void end_call(const BlockCall& call, uint64_t unheard = 0) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  PacketState& state = *call.args.packets.state;
  if (gridDim.x > 1) {  // one block has nobody to wait for
    if (atomicAdd(&state.blocks_done, 1U) + 1 != gridDim.x) return;
    state.blocks_done = 0;
  }
  state.unheard = unheard;
  state.epoch = call.epoch;
}

__device__ __forceinline__ void send_packet(const BlockCall& call, Packet* to, const Words& data) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to), "r"(data.low),
               "r"(call.flag), "r"(data.high));
}

__device__ __forceinline__ Packet look_at(const Packet* from) {
  Packet p;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(p.data_low), "=r"(p.flag_low), "=r"(p.data_high), "=r"(p.flag_high)
               : "l"(from));
  return p;
}

/// Every 1,024 looks without success. False: the wait is over. By value: what the caller holds
/// stays in registers.
static __device__ __noinline__ bool may_go_on(const PacketArgs& args, uint32_t flag, int peer,
                                              uint32_t seen, int64_t start_ns) {
  const nvlink::Team& team = args.team;
  const bool aborted = nvlink::load_host_word(team.must_abort) != 0;
  const bool noted = nvlink::load_host_word(&team.fault->code) != 0;
  if (!aborted && !noted && nvlink::device_ns() - start_ns < team.timeout_ns) return true;
  nvlink::give_up(team, {nvlink::Wait::kPacket, peer, flag}, seen, aborted);
  return false;
}

/// How often a wait has looked, and since when; the clock starts at the first slow look.
struct Patience {
  uint32_t looks = 0;
  int64_t start_ns = 0;

  /// After each look without success. False: gave up.
  __device__ __forceinline__ bool holds(const BlockCall& call, int peer, uint32_t seen) {
    if (++looks % 1024 != 0) return true;
    if (start_ns == 0) start_ns = nvlink::device_ns();
    return may_go_on(call.args, call.flag, peer, seen, start_ns);
  }
};

/// Every block, before it sends anything: waits for the greetings that this rank's last call left.
/// They lie in the half of that call. A peer that heard another block of ours may be two calls
/// further, and something of the call after ours, which has the same half, lie in the greeting's
/// place: it is as good. All threads say the same. False: gave up.
static __device__ __noinline__ bool hear(const PacketArgs& args, Before before) {
  const BlockCall call = begin_call(args, before);
  const uint64_t half_bytes = before.epoch % 2 * (args.packets.capacity_bytes / 2);
  const auto* greetings =
      reinterpret_cast<const Packet*>(args.packets.area[call.rank()] + half_bytes) +
      (before.unheard - 1);
  const auto greeted = static_cast<uint32_t>(before.epoch);
  const auto next_in_half = static_cast<uint32_t>(next_epoch(call.epoch));
  bool goes_on = true;
  for (int peer = static_cast<int>(threadIdx.x); peer < call.size(); peer += blockDim.x) {
    if (peer == call.rank()) continue;
    Patience patience;
    for (uint32_t seen; goes_on; goes_on = patience.holds(call, peer, seen)) {
      seen = look_at(greetings + peer).flag_low;
      if (seen == greeted || seen == next_in_half) break;
    }
  }
  return __syncthreads_and(goes_on ? 1 : 0) != 0;
}

/// A call from its beginning to its end; `exchange(call)` sends and receives, and returns what it
/// leaves unheard.
template <typename Exchange>
__device__ __forceinline__ void run_call(const PacketArgs& args, const Exchange& exchange) {
  const Before before = look_before(args);
  if (before.has_failed) return;
  const BlockCall call = begin_call(args, before);
  uint64_t unheard = 0;
  if (before.unheard == 0 || hear(args, before)) unheard = exchange(call);
  end_call(call, unheard);
}

/// Waits for one packet of each rank in [first, first + kPacketBatch) but this one; that of rank r
/// lies `stride` packets after that of r - 1, `slots` being rank 0's. False: gave up.
__device__ __forceinline__ bool await_packets(const BlockCall& call, const Packet* slots,
                                              uint64_t stride, int first,
                                              Words (&data)[kPacketBatch]) {
  const int left = call.size() - first;
  uint32_t missing = left < kPacketBatch ? (1U << left) - 1 : (1U << kPacketBatch) - 1;
  if (call.rank() >= first && call.rank() < first + kPacketBatch)
    missing &= ~(1U << (call.rank() - first));
  Patience patience;
  while (missing != 0) {
    Packet seen[kPacketBatch];
#pragma unroll
    for (int k = 0; k < kPacketBatch; ++k)
      if ((missing >> k & 1) != 0) seen[k] = look_at(slots + (first + k) * stride);
    uint32_t last_flag = 0;
#pragma unroll
    for (int k = 0; k < kPacketBatch; ++k) {
      if ((missing >> k & 1) == 0) continue;
      last_flag = seen[k].flag_low;
      if (seen[k].flag_low != call.flag || seen[k].flag_high != call.flag) continue;
      data[k] = {seen[k].data_low, seen[k].data_high};
      missing &= ~(1U << k);
    }
    if (missing == 0) break;
    const int slowest = first + __ffs(static_cast<int>(missing)) - 1;
    if (!patience.holds(call, slowest, last_flag)) return false;
  }
  return true;
}

}  // namespace braid::coll::device
