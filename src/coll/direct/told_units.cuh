// Units that movers take as they have room for one, and that are told of by flags: what a block
// that pushes in bulk does.
//
//   movers   take a unit, move it (bulk.cuh), count it as ended when its stores are performed
//   teller   a warp of its own, a lane for each mover: a fence for all units that have ended
//            since the last one, then their flags
//
// Taken    NVLink does not serve all multiprocessors alike: with equal shares the last mover ended
//          200 us of 770 behind the first. So there is one counter for the whole call, in
//          DirectState, and units are taken in the order of their numbers.
// Told     A fence of the system stands still for a trip over NVLink. In a mover it held up copies:
//          16 blocks carried 244 GB/s with one for every 16 KiB, and 352 without (decision 12).
//
// In shared memory a mover writes `taken` and `ended`, the teller `told`; a number stays in `taken`
// until it was told.
// Nothing waits in a circle: the teller waits for nobody, movers wait for it only when kBulkTaken
// units are under way. But a unit ends behind the first tile of the mover's next one: so what a
// unit waits for must not wait for the one before it to be told. (A relay's units wait for the
// root's, which wait for nothing.)
// Nothing tears: what a mover saw performed it counts with release, and the teller reads with
// acquire, before its fence; so the fence covers the mover's bulk copies too.
#pragma once

#include "coll/direct/bulk.cuh"

namespace braid::coll::device {

#if __CUDA_ARCH__ >= 900

/// For a BulkMover. Units by their number:
///   units.count()                       of the call
///   units.source(number), each_target(number, put)
///   Units::kArrive                      whether a unit has to arrive first; if so:
///   units.is_here(number), units.await(number)
///   units.tell(number)                  stores its flags; behind a fence
template <typename Units>
class TakenUnits {
 public:
  __device__ TakenUnits(const Units& units, uint32_t* next, BulkMemory* memory)
      : units_(units),
        count_(units.count()),
        next_(next),
        memory_(memory),
        mover_(threadIdx.x / 32),
        ahead_(atomicAdd(next, 1U)) {}

  /// The one after it is asked for at once, so that nobody waits for the counter.
  __device__ __forceinline__ bool take(uint32_t unit) {
    if (ahead_ >= count_) return false;
    while (unit - nvlink::load_acquire_shared(&memory_->told[mover_]) >= kBulkTaken) {
    }
    memory_->taken[mover_][unit % kBulkTaken] = ahead_;
    ahead_ = atomicAdd(next_, 1U);
    return true;
  }
  __device__ __forceinline__ bool is_here(uint32_t unit) const {
    if constexpr (!Units::kArrive)
      return true;
    else
      return may_load(units_.is_here(number(unit)));
  }
  __device__ __forceinline__ bool await(uint32_t unit) const {
    if constexpr (!Units::kArrive)
      return true;
    else
      return may_load(units_.await(number(unit)));
  }
  __device__ __forceinline__ Source source(uint32_t unit) const {
    return units_.source(number(unit));
  }
  template <typename Put>
  __device__ __forceinline__ void each_target(uint32_t unit, const Put& put) const {
    units_.each_target(number(unit), put);
  }
  __device__ __forceinline__ void end(uint32_t unit) {
    const uint32_t number = this->number(unit);
    const Source all = units_.source(number);
    units_.each_target(number, [&](char* target) { all.copy_rest(target); });
    ended_ = unit + 1;
    nvlink::store_release_shared(&memory_->ended[mover_], 2 * ended_);
  }
  /// There will be no more.
  __device__ __forceinline__ void finish() {
    nvlink::store_release_shared(&memory_->ended[mover_], 2 * ended_ + 1);
  }

 private:
  __device__ __forceinline__ uint32_t number(uint32_t unit) const {
    return memory_->taken[mover_][unit % kBulkTaken];
  }

  const Units& units_;
  const uint32_t count_;
  uint32_t* const next_;
  BulkMemory* const memory_;
  const uint32_t mover_;
  uint32_t ahead_;  // the next one's number
  uint32_t ended_ = 0;
};

/// All lanes of the teller's warp.
template <typename Units>
__device__ __forceinline__ void tell_units(const Units& units, BulkMemory* memory) {
  const uint32_t mover = threadIdx.x % 32 < kBulkMovers ? threadIdx.x % 32 : 0;
  const bool tells = threadIdx.x % 32 < kBulkMovers;
  uint32_t told = 0;
#pragma unroll 1
  for (;;) {
    const uint32_t word = nvlink::load_acquire_shared(&memory->ended[mover]);
    const uint32_t ended = word / 2;
    if (__any_sync(~0U, ended != told)) {
      __threadfence_system();
#pragma unroll 1
      for (; told != ended; ++told)
        if (tells) units.tell(memory->taken[mover][told % kBulkTaken]);
      if (tells) nvlink::store_release_shared(&memory->told[mover], told);
    } else if (__all_sync(~0U, word % 2 != 0)) {
      return;
    }
  }
}

/// The whole block. `next`: of all blocks of the call, 0 before it.
template <typename Units>
__device__ __forceinline__ void move_and_tell(const Units& units, uint32_t* next,
                                              uint64_t unit_bytes) {
  BulkMemory* const memory = bulk_memory();
  if (threadIdx.x < kBulkMovers) memory->ended[threadIdx.x] = memory->told[threadIdx.x] = 0;
  __syncthreads();
  if (is_mover()) {
    TakenUnits<Units> taken(units, next, memory);
    move_in_bulk(taken, unit_bytes);
    taken.finish();
  } else if (threadIdx.x / 32 == kBulkMovers) {
    tell_units(units, memory);
  }
}

#endif

}  // namespace braid::coll::device
