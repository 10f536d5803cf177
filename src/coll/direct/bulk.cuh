// Pushing by bulk asynchronous copies (sm_90 and later): one lane of a warp moves what 512 threads
// do by plain stores, and NVLink sees whole rows instead of 16-byte vectors.
//
// A pusher is lane 0 of one of a block's first kBulkPushers warps. It owns a ring of tiles in
// shared memory, each with an mbarrier that tells when a load has arrived, and works through its
// units (a chunk for one peer, or for all) tile by tile:
//
//   load    tile of send -> ring            runs kBulkAhead tiles ahead
//   store   ring -> the peers' areas        one group of bulk copies a tile
//   tell    the flag of a chunk             once all its groups are complete
//
// A slot of the ring is loaded over again when its store has read it (wait_group.read); a flag is
// told when the store has been performed at the peer (wait_group), which trails the stores by
// kBulkTrail tiles, so that no pusher stands still for a trip over NVLink. Loads are from this
// GPU's own memory and end by themselves, so that nothing here waits for another rank.
#pragma once

#include "coll/direct/direct.h"
#include "transport/nvlink/bulk_copy.cuh"
#include "transport/nvlink/team.cuh"

namespace braid::coll::device {

/// What a unit sends.
struct Source {
  const char* from;
  uint32_t bytes;

  /// Whole vectors of the tile that begins there.
  __device__ __forceinline__ uint32_t bytes_of_tile(uint32_t begin) const {
    const uint32_t whole = bytes / 16 * 16;
    return begin < whole ? min(whole - begin, kBulkTileBytes) : 0;
  }
};

#if __CUDA_ARCH__ >= 900

struct BulkMemory {
  alignas(128) char tiles[kBulkPushers][kBulkTiles][kBulkTileBytes];
  uint64_t arrived[kBulkPushers][kBulkTiles];
};

/// One pusher's ring. All members are for its lane alone.
class BulkRing {
 public:
  __device__ BulkRing(BulkMemory* memory, uint32_t pusher)
      : tiles_(nvlink::shared_address(memory->tiles[pusher])),
        arrived_(nvlink::shared_address(memory->arrived[pusher])) {
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

/// What a pusher does: `count` units of `tiles` tiles each.
///   units.source(unit)               the Source of a unit
///   units.each_target(unit, put)     put(char* to) for every place that gets it
///   units.tell(unit)                 its flags, and what is left beyond whole vectors
template <typename Units>
__device__ __forceinline__ void push_bulk(const BulkRing& ring, const Units& units, uint32_t count,
                                          uint32_t tiles) {
  const uint32_t total = count * tiles;
  const auto load = [&](uint32_t tile) {
    const Source source = units.source(tile / tiles);
    const uint32_t begin = tile % tiles * kBulkTileBytes;
    ring.load(tile, source.from + begin, source.bytes_of_tile(begin));
  };
#pragma unroll 1
  for (uint32_t tile = 0; tile < kBulkAhead && tile < total; ++tile) load(tile);
#pragma unroll 1
  for (uint32_t tile = 0; tile < total; ++tile) {
    if (tile + kBulkAhead < total) {
      nvlink::wait_until_read<kBulkTiles - kBulkAhead - 1>();
      load(tile + kBulkAhead);
    }
    const uint32_t unit = tile / tiles, begin = tile % tiles * kBulkTileBytes;
    const uint32_t bytes = units.source(unit).bytes_of_tile(begin);
    ring.await_load(tile);
    units.each_target(unit, [&](char* to) { ring.store(tile, to + begin, bytes); });
    nvlink::close_stores();
    if (tile < kBulkTrail || (tile - kBulkTrail + 1) % tiles != 0) continue;
    nvlink::wait_until_stored<kBulkTrail>();
    units.tell((tile - kBulkTrail) / tiles);
  }
  nvlink::wait_until_stored<0>();
#pragma unroll 1
  for (uint32_t unit = total > kBulkTrail ? (total - kBulkTrail) / tiles : 0; unit < count; ++unit)
    units.tell(unit);
}

#endif

}  // namespace braid::coll::device
