// Moving chunks by bulk asynchronous copies (sm_90 and later): one lane of a warp moves what 512
// threads do by plain stores, and NVLink sees whole rows instead of 16-byte vectors.
//
// A mover is lane 0 of one of a block's first kBulkMovers warps. It owns a ring of tiles in shared
// memory, each with an mbarrier that tells when a load has arrived, and works through its units (a
// chunk for one peer, for all, or from one) tile by tile:
//
//   load    tile -> ring                    runs kBulkAhead tiles ahead
//   store   ring -> the peers' areas, recv  one group of bulk copies a tile
//   end     of a unit                       once all its groups are complete
//
// A slot of the ring is loaded over again when its store has read it (wait_group.read); a unit ends
// when its stores have been performed (wait_group), which trails the stores by kBulkTrail tiles, so
// that no mover stands still for a trip over NVLink. Loads are from this GPU's own memory and end
// by themselves. A unit that has yet to arrive is waited for when all that was loaded is stored.
// Flags of units are another warp's work (told_units.cuh).
#pragma once

#include "coll/direct/direct.cuh"
#include "transport/nvlink/bulk_copy.cuh"

namespace braid::coll::device {

/// What a unit moves.
struct Source {
  const char* from;
  uint32_t bytes;

  /// Whole vectors of the tile that begins there.
  __device__ __forceinline__ uint32_t bytes_of_tile(uint32_t begin) const {
    const uint32_t whole = bytes / 16 * 16;
    return begin < whole ? min(whole - begin, kBulkTileBytes) : 0;
  }
  /// What is left beyond whole vectors.
  __device__ __forceinline__ void copy_rest(char* to) const {
    for (uint32_t b = bytes / 16 * 16; b < bytes; ++b) to[b] = from[b];
  }
};

#if __CUDA_ARCH__ >= 900

struct BulkMemory {
  alignas(128) char tiles[kBulkMovers][kBulkTiles][kBulkTileBytes];
  uint64_t arrived[kBulkMovers][kBulkTiles];
  uint32_t taken[kBulkMovers][kBulkTaken];  // numbers of the units under way
  uint32_t ended[kBulkMovers];              // units, twice, and 1 more when there will be no others
  uint32_t told[kBulkMovers];               // units
};
static_assert(sizeof(BulkMemory) <= kBulkSharedBytes);

/// One mover's ring. All members are for its lane alone.
class BulkRing {
 public:
  __device__ BulkRing(BulkMemory* memory, uint32_t mover)
      : tiles_(nvlink::shared_address(memory->tiles[mover])),
        arrived_(nvlink::shared_address(memory->arrived[mover])) {
    for (uint32_t slot = 0; slot < kBulkTiles; ++slot) nvlink::init_mbarrier(arrived_ + slot * 8);
    nvlink::publish_mbarriers();
  }

  /// `bytes`: a multiple of 16; 0 loads nothing.
  __device__ __forceinline__ void load(uint32_t tile, const char* from, uint32_t bytes) const {
    nvlink::load_bulk(place_of(tile), from, bytes, barrier_of(tile));
  }
  __device__ __forceinline__ void await_load(uint32_t tile) const {
    while (!nvlink::is_over(barrier_of(tile), tile / kBulkTiles)) {
    }
  }
  __device__ __forceinline__ void store(uint32_t tile, char* to, uint32_t bytes) const {
    nvlink::store_bulk(to, place_of(tile), bytes);
  }

 private:
  __device__ __forceinline__ uint32_t place_of(uint32_t tile) const {
    return tiles_ + tile % kBulkTiles * kBulkTileBytes;
  }
  __device__ __forceinline__ uint32_t barrier_of(uint32_t tile) const {
    return arrived_ + tile % kBulkTiles * 8;
  }

  uint32_t tiles_, arrived_;
};

/// What a flag told of comes before the bulk loads of it.
__device__ __forceinline__ bool may_load(bool has_arrived) {
  if (has_arrived) nvlink::before_bulk_copies();
  return has_arrived;
}

/// A mover's way through its units, which it counts from 0:
///   units.take(unit)                 the next; false: there are no more
///   units.source(unit)               the Source of a unit that was taken
///   units.is_here(unit)              whether it may be loaded
///   units.await(unit)                waits for that; false: gave up
///   units.each_target(unit, put)     put(char* to) for every place that gets it
///   units.end(unit)                  when its stores have been performed
template <typename Units>
class BulkMover {
 public:
  __device__ BulkMover(const BulkRing& ring, Units& units, uint64_t unit_bytes)
      : ring_(ring),
        units_(units),
        tiles_(static_cast<uint32_t>((unit_bytes + kBulkTileBytes - 1) / kBulkTileBytes)) {}

  __device__ __forceinline__ void run() {
    uint32_t tile = 0;
#pragma unroll 1
    for (;; ++tile) {
      nvlink::wait_until_read<kBulkTiles - kBulkAhead - 1>();
      load_ahead_of(tile);
      if (tile == total_) break;
      store(tile);
      if (tile < kBulkTrail || (tile - kBulkTrail + 1) % tiles_ != 0) continue;
      nvlink::wait_until_stored<kBulkTrail>();
      units_.end((tile - kBulkTrail) / tiles_);
    }
    nvlink::wait_until_stored<0>();
#pragma unroll 1
    for (uint32_t unit = tile > kBulkTrail ? (tile - kBulkTrail) / tiles_ : 0; unit < tile / tiles_;
         ++unit)
      units_.end(unit);
  }

 private:
  __device__ __forceinline__ void load_ahead_of(uint32_t tile) {
#pragma unroll 1
    for (; loaded_ < total_ && loaded_ <= tile + kBulkAhead; ++loaded_) {
      const uint32_t unit = loaded_ / tiles_, begin = loaded_ % tiles_ * kBulkTileBytes;
      if (unit == taken_) {
        if (!units_.take(unit)) total_ = loaded_;
        if (loaded_ == total_) return;
        ++taken_;
      }
      if (begin == 0 && !units_.is_here(unit)) {
        if (loaded_ > tile) return;
        if (!units_.await(unit)) total_ = loaded_;
        if (loaded_ == total_) return;
      }
      const Source source = units_.source(unit);
      ring_.load(loaded_, source.from + begin, source.bytes_of_tile(begin));
    }
  }

  __device__ __forceinline__ void store(uint32_t tile) const {
    const uint32_t unit = tile / tiles_, begin = tile % tiles_ * kBulkTileBytes;
    const uint32_t bytes = units_.source(unit).bytes_of_tile(begin);
    ring_.await_load(tile);
    units_.each_target(unit, [&](char* to) { ring_.store(tile, to + begin, bytes); });
    nvlink::close_stores();
  }

  const BulkRing& ring_;
  Units& units_;
  const uint32_t tiles_;  // of a unit
  uint32_t total_ = ~0U;  // of all units, or of those before one that was given up, once known
  uint32_t taken_ = 0;    // units
  uint32_t loaded_ = 0;   // or being loaded
};

__device__ __forceinline__ bool is_mover() {
  return threadIdx.x / 32 < kBulkMovers && threadIdx.x % 32 == 0;
}
__device__ __forceinline__ BulkMemory* bulk_memory() {
  extern __shared__ __align__(128) unsigned char dynamic_memory[];
  return reinterpret_cast<BulkMemory*>(dynamic_memory);
}

/// For a mover: all units, of up to `unit_bytes`.
template <typename Units>
__device__ __forceinline__ void move_in_bulk(Units& units, uint64_t unit_bytes) {
  const BulkRing ring(bulk_memory(), threadIdx.x / 32);
  BulkMover(ring, units, unit_bytes).run();
}

#endif

}  // namespace braid::coll::device
