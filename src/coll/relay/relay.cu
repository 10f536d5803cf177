// A broadcast among three ranks or more, in which nobody sends a byte more than once and what has
// landed is passed on at once.
//
// The message is cut into rows, and a row into a unit for each rank but the root: its owner. The
// root sends every unit to its owner, who sends it on to the rest. So the root sends the message
// once, everyone else two thirds of it among four ranks, and what arrives at a rank comes from all
// others evenly. Copy engines cannot do that: they need pieces of some MiB, whose senders meet at
// one receiver while another has none. And in a chain, from rank to rank, whatever holds up one
// holds up all behind it. Measured: docs/decisions/0011-broadcast-by-relay.md.
//
//   root     sends units to their owners
//   others   send each unit they own, as it lands, to every other rank but the root
//
// Units    Blocks take them as they have room for one (told_units.cuh): the root's those of all
//          rows, the others' their own. They are counted row by row, so that they are taken in the
//          order in which they land. Where addresses or the GPU do not allow bulk copies, all
//          threads of a block take a unit together.
// Flags    One word per (source, row) in the receiver's memory: the epoch of the last call of which
//          the source's unit of that row for this receiver has landed. It has one writer at a time
//          and only grows, since epochs do; it is never reset.
// Epochs   DirectState::epoch counts the calls that ended on this rank, in device memory, so that a
//          replayed graph goes on counting. Every rank takes part in every call.
//
// Nothing tears: a unit is read after an acquire that saw its flag. The flag was stored when the
//   unit's bulk copies had been performed, or behind a barrier of the block that wrote it, in
//   either case behind a fence of the system by the thread that stores the flag.
// Nothing is lost: a call begins behind a barrier of all ranks, so nobody writes where another
//   still reads the call before. It ends on a rank when all it is to get has landed and all it is
//   to send has been performed.
// Nothing hangs: the root's movers wait for nobody, others' for the root's and, when they are
//   through, for the others': one block per GPU is enough for progress, since a unit that was taken
//   is in hands that run; of ranks that share a GPU every one has its place
//   (Device::shared_blocks()). Every wait looks at the clock and at the host's word; when it ends
//   in vain it notes it as the Fault and in Team::has_failed, and the mover begins nothing more.
#include "coll/direct/told_units.cuh"
#include "coll/relay/relay.h"
#include "transport/nvlink/team.cuh"
#include "transport/nvlink/words.cuh"

namespace braid::coll::device {
namespace {

struct Relay {
  const RelayArgs& args;
  uint64_t epoch;

  __device__ const RelayShape& shape() const { return args.shape; }
  __device__ uint32_t* next_unit() const { return &args.state->next_unit[epoch % 2]; }
  __device__ int rank() const { return args.team.rank; }
  __device__ bool is_root() const { return rank() == args.root; }
  __device__ int other(uint32_t index) const {
    const int at = args.root + 1 + static_cast<int>(index);
    return at < args.team.size ? at : at - args.team.size;
  }
  /// This rank's number among the others.
  __device__ uint32_t own() const {
    const int behind = rank() - args.root - 1;
    return static_cast<uint32_t>(behind < 0 ? behind + args.team.size : behind);
  }
  __device__ uint64_t* flag(int at, int source, uint32_t row) const {
    return args.flags[at] + static_cast<uint64_t>(source) * kMostRelayRows + row;
  }
#if __CUDA_ARCH__ >= 900
  __device__ bool has_landed(int source, uint32_t row) const {
    return nvlink::load_acquire(flag(rank(), source, row)) >= epoch;
  }
#endif
  /// False: gave up.
  __device__ bool await(int source, uint32_t row) const {
    return nvlink::wait_for(args.team, flag(rank(), source, row),
                            {nvlink::Wait::kChunk, source, epoch});
  }
  __device__ void tell(int to, uint32_t row) const {
    nvlink::store_relaxed(flag(to, rank(), row), epoch);
  }
};

/// What the root does: unit by unit of every row, each for another owner than the one before.
struct RootUnits {
#if __CUDA_ARCH__ >= 900
  static constexpr bool kArrive = false;
#endif
  const Relay& relay;

  __device__ uint32_t count() const { return relay.shape().num_rows() * relay.shape().num_others; }
  __device__ uint32_t row_of(uint32_t number) const { return number / relay.shape().num_others; }
  __device__ uint32_t owner_of(uint32_t number) const { return number % relay.shape().num_others; }
  __device__ bool await(uint32_t) const { return true; }
  __device__ Source source(uint32_t number) const {
    const uint32_t row = row_of(number), owner = owner_of(number);
    return {reinterpret_cast<const char*>(relay.args.source) + relay.shape().begin_of(row, owner),
            relay.shape().bytes_of(row, owner)};
  }
  template <typename Put>
  __device__ void each_target(uint32_t number, const Put& put) const {
    const uint32_t owner = owner_of(number);
    put(reinterpret_cast<char*>(relay.args.place[relay.other(owner)]) +
        relay.shape().begin_of(row_of(number), owner));
  }
  __device__ void tell(uint32_t number) const {
    relay.tell(relay.other(owner_of(number)), row_of(number));
  }
};

/// What another rank does: its own unit of each row.
struct OwnUnits {
#if __CUDA_ARCH__ >= 900
  static constexpr bool kArrive = true;
#endif
  const Relay& relay;

  __device__ uint32_t count() const { return relay.shape().num_rows(); }
#if __CUDA_ARCH__ >= 900
  __device__ bool is_here(uint32_t row) const { return relay.has_landed(relay.args.root, row); }
#endif
  __device__ bool await(uint32_t row) const { return relay.await(relay.args.root, row); }
  __device__ Source source(uint32_t row) const {
    const uint32_t own = relay.own();
    return {reinterpret_cast<const char*>(relay.args.place[relay.rank()]) +
                relay.shape().begin_of(row, own),
            relay.shape().bytes_of(row, own)};
  }
  template <typename Each>
  __device__ void each_peer(const Each& each) const {
    const uint32_t num_others = relay.shape().num_others;
    uint32_t at = relay.own();
#pragma unroll 1
    for (uint32_t i = 1; i < num_others; ++i) {
      at = at + 1 == num_others ? 0 : at + 1;
      each(relay.other(at));
    }
  }
  template <typename Put>
  __device__ void each_target(uint32_t row, const Put& put) const {
    const uint64_t begin = relay.shape().begin_of(row, relay.own());
    each_peer([&](int peer) { put(reinterpret_cast<char*>(relay.args.place[peer]) + begin); });
  }
  __device__ void tell(uint32_t row) const {
    each_peer([&](int peer) { relay.tell(peer, row); });
  }
};

/// All threads of the block together.
template <typename Units>
__device__ void move_by_threads(const Relay& relay, const Units& units) {
  __shared__ uint32_t taken;
#pragma unroll 1
  for (;;) {
    if (threadIdx.x == 0) taken = atomicAdd(relay.next_unit(), 1U);
    __syncthreads();
    const uint32_t number = taken;
    if (number >= units.count()) return;
    if (__syncthreads_and(threadIdx.x != 0 || units.await(number) ? 1 : 0) == 0) return;
    const Source all = units.source(number);
    units.each_target(number, [&](char* to) {
      nvlink::copy_by_threads({threadIdx.x, kRelayThreads}, reinterpret_cast<std::byte*>(to),
                              reinterpret_cast<const std::byte*>(all.from), all.bytes);
    });
    __syncthreads();
    if (threadIdx.x != 0) continue;
    __threadfence_system();  // behind the barrier: it covers what all threads wrote
    units.tell(number);
  }
}

template <typename Units>
__device__ void move_all(const Relay& relay, const Units& units) {
#if __CUDA_ARCH__ >= 900
  if (relay.args.uses_bulk != 0) {
    move_and_tell(units, relay.next_unit(), relay.shape().unit_bytes);
    return;
  }
#endif
  move_by_threads(relay, units);
}

/// Everything that the other others send this rank: a thread looks at every so many rows' flags.
__device__ void await_all(const Relay& relay) {
  __syncthreads();  // no thread looks while the block's movers are busy
  if (nvlink::has_failed(relay.args.team)) return;
#pragma unroll 1
  for (uint32_t i = 0; i < relay.shape().num_others; ++i) {
    const int owner = relay.other(i);
    if (owner == relay.rank()) continue;
#pragma unroll 1
    for (uint32_t row = blockIdx.x * kRelayThreads + threadIdx.x; row < relay.shape().num_rows();
         row += gridDim.x * kRelayThreads)
      if (!relay.await(owner, row)) return;
  }
}

}  // namespace
}  // namespace braid::coll::device

extern "C" __global__ void __launch_bounds__(braid::coll::kRelayThreads, 1)
    braid_relay(const __grid_constant__ braid::coll::RelayArgs args) {
  using namespace braid::coll::device;
  const bool has_failed = threadIdx.x == 0 && braid::nvlink::has_failed(args.team);
  if (__syncthreads_or(has_failed ? 1 : 0) != 0) return;
  const uint64_t epoch = *const_cast<volatile uint64_t*>(&args.state->epoch) + 1;
  const Relay relay{args, epoch};
  if (relay.is_root()) {
    move_all(relay, RootUnits{relay});
  } else {
    move_all(relay, OwnUnits{relay});
    await_all(relay);
  }
  end_call(*args.state, epoch);
}
