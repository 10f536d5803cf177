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
//   others   send own units, as they land, to the other others
//
// Lanes    A block has kBulkMovers lanes. Lane k takes rows k, k + lanes, ... on every rank,
//          and passes on what lane k of the root has sent. A lane goes by bulk copies, a warp's
//          first thread for each, or by all threads of its block where addresses or the GPU do not
//          allow that.
// Flags    One word per (source, lane) in the receiver's memory: the call's epoch above the number
//          of the lane's rows of which the source's unit for this receiver has landed. It has one
//          writer and only grows, since epochs do; it is never reset.
// Epochs   DirectState::epoch counts the calls that ended on this rank, in device memory, so that a
//          replayed graph goes on counting. Every rank takes part in every call.
//
// Nothing tears: a unit is read after an acquire that saw it counted. The flag was stored when the
//   unit's bulk copies had been performed, or behind a barrier of the block that wrote it, in
//   either case behind a fence of the system by the thread that stores the flag.
// Nothing is lost: a call begins behind a barrier of all ranks, so nobody writes where another
//   still reads the call before. It ends on a rank when all it is to get has landed (the last wait
//   of each lane) and all it is to send has been performed.
// Nothing hangs: the root's lanes wait for nobody, others' for the root's and, when they are
//   through, for the same lane of the others: one block per GPU is enough for progress, since
//   blocks start in the order of their numbers. Every wait looks at the clock and at the host's
//   word; when it ends in vain it notes it in Trouble and in Team::has_failed, and the lane sends
//   and tells nothing more.
#include "coll/direct/bulk.cuh"
#include "coll/relay/relay.h"
#include "transport/nvlink/team.cuh"
#include "transport/nvlink/words.cuh"

namespace braid::coll::device {
namespace {

struct Relay {
  const RelayArgs& args;
  uint64_t epoch;
  RelayShape shape;

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
  __device__ uint64_t* flag(int at, int source, uint32_t lane) const {
    return args.flags[at] + static_cast<uint64_t>(source) * kMostRelayLanes + lane;
  }
  __device__ uint64_t value_of(uint32_t rows) const { return epoch << 32 | rows; }
#if __CUDA_ARCH__ >= 900
  __device__ bool has_landed(int source, uint32_t lane, uint32_t rows) const {
    return nvlink::load_acquire(flag(rank(), source, lane)) >= value_of(rows);
  }
#endif
  /// False: gave up.
  __device__ bool await(int source, uint32_t lane, uint32_t rows) const {
    return nvlink::wait_for(args.team, flag(rank(), source, lane),
                            {nvlink::Wait::kChunk, source, value_of(rows)});
  }
  __device__ void tell(int to, uint32_t lane, uint32_t rows) const {
    nvlink::store_relaxed(flag(to, rank(), lane), value_of(rows));
  }
};

/// What a lane of the root does: all units of its rows. Lanes begin with different owners.
struct RootUnits {
  const Relay& relay;
  uint32_t lane;

  __device__ uint32_t count() const { return relay.shape.rows_of(lane) * relay.shape.num_others; }
  __device__ uint32_t in_lane(uint32_t unit) const { return unit / relay.shape.num_others; }
  __device__ uint32_t row_of(uint32_t unit) const {
    return lane + in_lane(unit) * relay.shape.num_lanes;
  }
  __device__ uint32_t owner_of(uint32_t unit) const {
    return (unit + lane) % relay.shape.num_others;
  }
#if __CUDA_ARCH__ >= 900
  __device__ bool is_here(uint32_t) const { return true; }
#endif
  __device__ bool await(uint32_t) const { return true; }
  __device__ Source source(uint32_t unit) const {
    const uint32_t row = row_of(unit), owner = owner_of(unit);
    return {reinterpret_cast<const char*>(relay.args.source) + relay.shape.begin_of(row, owner),
            relay.shape.bytes_of(row, owner)};
  }
  template <typename Put>
  __device__ void each_target(uint32_t unit, const Put& put) const {
    const uint32_t owner = owner_of(unit);
    put(reinterpret_cast<char*>(relay.args.place[relay.other(owner)]) +
        relay.shape.begin_of(row_of(unit), owner));
  }
  __device__ void tell(uint32_t unit) const {
    relay.tell(relay.other(owner_of(unit)), lane, in_lane(unit) + 1);
  }
};

/// What a lane of another rank does: its own unit of each of the lane's rows.
struct OwnUnits {
  const Relay& relay;
  uint32_t lane;

  __device__ uint32_t count() const { return relay.shape.rows_of(lane); }
  __device__ uint32_t row_of(uint32_t unit) const { return lane + unit * relay.shape.num_lanes; }
#if __CUDA_ARCH__ >= 900
  __device__ bool is_here(uint32_t unit) const {
    return relay.has_landed(relay.args.root, lane, unit + 1);
  }
#endif
  __device__ bool await(uint32_t unit) const {
    return relay.await(relay.args.root, lane, unit + 1);
  }
  __device__ Source source(uint32_t unit) const {
    const uint32_t row = row_of(unit), own = relay.own();
    return {reinterpret_cast<const char*>(relay.args.place[relay.rank()]) +
                relay.shape.begin_of(row, own),
            relay.shape.bytes_of(row, own)};
  }
  template <typename Each>
  __device__ void each_peer(const Each& each) const {
    const uint32_t num_others = relay.shape.num_others;
    uint32_t at = relay.own();
#pragma unroll 1
    for (uint32_t i = 1; i < num_others; ++i) {
      at = at + 1 == num_others ? 0 : at + 1;
      each(relay.other(at));
    }
  }
  template <typename Put>
  __device__ void each_target(uint32_t unit, const Put& put) const {
    const uint64_t begin = relay.shape.begin_of(row_of(unit), relay.own());
    each_peer([&](int peer) { put(reinterpret_cast<char*>(relay.args.place[peer]) + begin); });
  }
  __device__ void tell(uint32_t unit) const {
    each_peer([&](int peer) { relay.tell(peer, lane, unit + 1); });
  }
};

#if __CUDA_ARCH__ >= 900

/// Units for a BulkMover.
template <typename Units>
struct BulkUnitsOf {
  struct Share {
    uint32_t count;
  };
  const Units& units;
  Share share;

  __device__ bool is_here(uint32_t unit) const { return may_load(units.is_here(unit)); }
  __device__ bool await(uint32_t unit) const { return may_load(units.await(unit)); }
  __device__ Source source(uint32_t unit) const { return units.source(unit); }
  template <typename Put>
  __device__ void each_target(uint32_t unit, const Put& put) const {
    units.each_target(unit, put);
  }
  __device__ void end(uint32_t unit) const {
    const Source all = units.source(unit);
    units.each_target(unit, [&](char* target) { all.copy_rest(target); });
    __threadfence_system();
    units.tell(unit);
  }
};

template <typename Units>
__device__ void move_in_bulk(const Units& units, const BulkRing& ring) {
  const BulkUnitsOf<Units> in_bulk{units, {units.count()}};
  BulkMover(ring, in_bulk, kRelayUnitBytes).run();
}

#endif

/// All threads of the block together.
template <typename Units>
__device__ void move_by_threads(const Units& units) {
#pragma unroll 1
  for (uint32_t unit = 0; unit < units.count(); ++unit) {
    if (__syncthreads_and(threadIdx.x != 0 || units.await(unit) ? 1 : 0) == 0) return;
    const Source all = units.source(unit);
    units.each_target(unit, [&](char* to) {
      nvlink::copy_by_threads({threadIdx.x, kRelayThreads}, reinterpret_cast<std::byte*>(to),
                              reinterpret_cast<const std::byte*>(all.from), all.bytes);
    });
    __syncthreads();
    if (threadIdx.x != 0) continue;
    __threadfence_system();  // behind the barrier: it covers what all threads wrote
    units.tell(unit);
  }
}

/// units_of(lane of the block) for each of a block's lanes: by a warp's first thread in bulk, or
/// one after the other by all threads.
template <typename UnitsOf>
__device__ void move_all(const Relay& relay, const UnitsOf& units_of) {
#if __CUDA_ARCH__ >= 900
  if (relay.args.uses_bulk != 0) {
    extern __shared__ __align__(128) unsigned char memory[];
    const uint32_t mover = threadIdx.x / 32;
    if (mover >= kBulkMovers || threadIdx.x % 32 != 0) return;
    const BulkRing ring(reinterpret_cast<BulkMemory*>(memory), mover);
    move_in_bulk(units_of(mover), ring);
    return;
  }
#endif
#pragma unroll 1
  for (uint32_t mover = 0; mover < kBulkMovers; ++mover) move_by_threads(units_of(mover));
}

/// Everything that the other others send this rank on the block's lanes, each by the thread that
/// moves it.
__device__ void await_all(const Relay& relay) {
  const uint32_t mover = threadIdx.x / 32;
  if (mover >= kBulkMovers || threadIdx.x % 32 != 0) return;
  const uint32_t lane = mover * gridDim.x + blockIdx.x;
  const uint32_t rows = relay.shape.rows_of(lane);
#pragma unroll 1
  for (uint32_t i = 0; i < relay.shape.num_others && rows > 0; ++i) {
    const int owner = relay.other(i);
    if (owner != relay.rank() && !relay.await(owner, lane, rows)) return;
  }
}

}  // namespace
}  // namespace braid::coll::device

extern "C" __global__ void __launch_bounds__(braid::coll::kRelayThreads)
    braid_relay(const __grid_constant__ braid::coll::RelayArgs args) {
  using namespace braid::coll::device;
  using braid::coll::kBulkMovers;
  const bool has_failed = threadIdx.x == 0 && braid::nvlink::has_failed(args.team);
  if (__syncthreads_or(has_failed ? 1 : 0) != 0) return;
  const uint64_t epoch = *const_cast<volatile uint64_t*>(&args.state->epoch) + 1;
  const Relay relay{
      args,
      epoch,
      {args.bytes, static_cast<uint32_t>(args.team.size - 1), gridDim.x * kBulkMovers}};
  const auto lane_of = [&](uint32_t mover) { return mover * gridDim.x + blockIdx.x; };
  if (relay.is_root()) {
    move_all(relay, [&](uint32_t mover) { return RootUnits{relay, lane_of(mover)}; });
  } else {
    move_all(relay, [&](uint32_t mover) { return OwnUnits{relay, lane_of(mover)}; });
    await_all(relay);
  }
  end_call(*args.state, epoch);
}
