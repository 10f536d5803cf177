// A lane of the ring by bulk asynchronous copies (sm_90 and later): a few threads of a block move
// what 512 do by plain loads and stores, and PCIe sees whole rows. Between memory and slots lie
// tiles of shared memory, used again and again in order:
//
//             warp 0, the loader         warp 1, the storer            warp 2, the teller
//   sender    source -> tiles, once a    tiles -> slots, no more than  full, for slots that
//             slot is free               open_tiles under way          have been performed
//   reader    slot -> tiles, once it     tiles -> destination          free, for slots that
//             is full                                                  have arrived in tiles
//
// Lane 0 of each does its part. Warp 3, the watcher, looks at the other side's flags, a lane for
// each reader. It and the teller are threads of their own because a look and a fence are a trip to
// the host and back, behind all stores on the way there: some 5 us, the time of a slot.
//
// Why few tiles may be under way: PCIe takes stores more slowly than blocks give them, and what
// waits for it stands in NVLink's way. 8 blocks that only waited until their tiles had been read
// stored 53 GB/s to the host, and a copy engine beside them carried 139 GB/s to the peer; when they
// waited until all but a few had been performed, 53 and 391
// (docs/decisions/0015-stores-that-wait-for-pcie.md).
//
// Who writes what: a tile has an mbarrier `arrived`, which the loader's copies complete, and one
// `emptied`, at which the storer arrives; the loader waits for it before the tile's next use. Tiles
// are numbered through a transfer, and use u of a tile is phase u of both: neither the loader nor
// the storer can be a use ahead of the other, so a phase's parity tells. `may_use` is the
// watcher's, slots that are free or full; `told_of` the storer's, slots that may be told of. A
// slot's bytes beyond whole 16 are copied by the storer, a reader's by the loader.
//
// Why it cannot hang: the watcher alone waits for other ranks (team.cuh). When it gives up it says
// so in `has_quit`, at which the waits within the block look, and so they end. Nothing is in flight
// when the block ends: the loader waits for what it has asked for, the storer for what it wrote, or
// it would land in the shared memory of somebody else.
#pragma once

#include "transport/nvlink/bulk_copy.cuh"
#include "transport/pcie/ring_view.cuh"

namespace braid::pcie {

#if __CUDA_ARCH__ >= 900

/// What the block's warps share.
struct BulkMemory {
  alignas(128) std::byte tiles[kTiles][kTileBytes];
  uint64_t arrived[kTiles];
  uint64_t emptied[kTiles];
  uint32_t may_use;
  uint32_t told_of;
  uint32_t has_quit;
};
static_assert(sizeof(BulkMemory) <= kBulkSharedBytes);

class BulkLane {
 public:
  /// By all threads of the block, which meet here.
  __device__ BulkLane(BulkMemory* memory, const nvlink::Team& team, const HostRing& ring,
                      const Flow& flow, int lane, int num_lanes)
      : memory_(memory),
        team_(team),
        flow_(flow),
        view_(ring, flow.sender, flow.key, lane),
        progress_(progress_of(ring, flow, lane)),
        first_(*progress_),
        begin_(lane_begin(flow.bytes, lane, num_lanes)),
        bytes_(lane_begin(flow.bytes, lane + 1, num_lanes) - begin_),
        num_slots_(static_cast<uint32_t>((bytes_ + view_.slot_bytes - 1) / view_.slot_bytes)),
        tiles_a_slot_((view_.slot_bytes + kTileBytes - 1) / kTileBytes) {
    if (threadIdx.x == 0) {
#pragma unroll 1
      for (uint32_t tile = 0; tile < kTiles; ++tile) {
        nvlink::init_mbarrier(arrived(tile));
        nvlink::init_mbarrier(emptied(tile));
      }
      memory_->may_use = 0;
      memory_->told_of = 0;
      memory_->has_quit = 0;
      nvlink::publish_mbarriers();
    }
    __syncthreads();
  }

  __device__ void run(uint32_t warp, uint32_t lane_of_warp, uint32_t open_tiles) {
    const bool sends = flow_.source != nullptr;
    if (warp == 3) watch_all(static_cast<int>(lane_of_warp), sends);
    if (lane_of_warp != 0) return;
    if (warp == 0) load_all(sends);
    if (warp == 1 && sends) send_all(open_tiles);
    if (warp == 1 && !sends) take_all();
    if (warp == 2) tell_all(sends);
  }

 private:
  __device__ uint32_t arrived(uint32_t tile) const {
    return nvlink::shared_address(&memory_->arrived[tile % kTiles]);
  }
  __device__ uint32_t emptied(uint32_t tile) const {
    return nvlink::shared_address(&memory_->emptied[tile % kTiles]);
  }
  __device__ uint32_t place(uint32_t tile) const {
    return nvlink::shared_address(memory_->tiles[tile % kTiles]);
  }
  __device__ volatile uint32_t& has_quit() const {
    return *const_cast<volatile uint32_t*>(&memory_->has_quit);
  }
  /// False: the others have given up.
  __device__ bool await(uint32_t barrier, uint32_t tile) const {
    while (!nvlink::is_over(barrier, tile / kTiles))
      if (has_quit() != 0) return false;
    return true;
  }

  __device__ uint64_t slot_begin(uint32_t slot) const {
    return static_cast<uint64_t>(slot) * view_.slot_bytes;
  }
  __device__ uint32_t slot_length(uint32_t slot) const {
    return static_cast<uint32_t>(
        min(bytes_ - slot_begin(slot), static_cast<uint64_t>(view_.slot_bytes)));
  }
  /// Every slot has a tile, were it an empty one, so that the storer has something to wait for.
  __device__ uint32_t num_tiles(uint32_t length) const {
    return max(1U, (length / 16 * 16 + kTileBytes - 1) / kTileBytes);
  }
  __device__ static uint32_t tile_length(uint32_t length, uint32_t index) {
    return min(kTileBytes, length / 16 * 16 - index * kTileBytes);
  }
  __device__ static void copy_rest(std::byte* to, const std::byte* from, uint32_t length) {
#pragma unroll 1
    for (uint32_t i = length / 16 * 16; i < length; ++i)
      to[i] = const_cast<const volatile std::byte*>(from)[i];
  }

  __device__ void load_all(bool sends) {
    uint32_t end = 0;  // of the tiles that were asked for
    for (uint32_t slot = 0; slot < num_slots_; ++slot)
      if (!load_slot(slot, sends, &end)) break;
    for (uint32_t tile = end > kTiles ? end - kTiles : 0; tile < end; ++tile)
      while (!nvlink::is_over(arrived(tile), tile / kTiles)) {
      }
  }
  __device__ bool load_slot(uint32_t slot, bool sends, uint32_t* end) const {
    const uint32_t length = slot_length(slot), tiles = num_tiles(length);
    const uint64_t at = begin_ + slot_begin(slot);
    const std::byte* from = sends ? flow_.source + at : view_.slot(first_ + slot);
    while (nvlink::load_acquire_shared(&memory_->may_use) <= slot)
      if (has_quit() != 0) return false;
    nvlink::before_bulk_copies();
    if (!sends) copy_rest(flow_.destination + at, from, length);
    for (uint32_t i = 0; i < tiles; ++i) {
      const uint32_t tile = slot * tiles_a_slot_ + i;
      if (tile >= kTiles && !await(emptied(tile), tile - kTiles)) return false;
      nvlink::load_bulk(place(tile), from + i * kTileBytes, tile_length(length, i), arrived(tile));
      *end = tile + 1;
    }
    return true;
  }

  // Waits until one slot more than are known may be used, then looks how many there are.
  __device__ void watch_all(int lane_of_warp, bool sends) {
    const bool looks = sends
                           ? lane_of_warp < team_.size && is_reader(team_, flow_.key, lane_of_warp)
                           : lane_of_warp == 0;
    const uint64_t* const flag =
        sends ? &view_.counters->free[lane_of_warp % nvlink::kMostRanks].value
              : &view_.counters->full.value;
    // Of a ring that was just made all slots are free, and no flag says so.
    const uint64_t ahead = sends ? view_.num_slots : 0;
    for (uint32_t known = 0; known < num_slots_;) {
      const uint64_t wanted = first_ + known + 1;
      uint32_t seen = num_slots_;
      bool is_here = true;
      if (looks && wanted > ahead)
        is_here = nvlink::wait_for(team_, flag,
                                   {sends ? nvlink::Wait::kSlotFree : nvlink::Wait::kSlotFull,
                                    sends ? lane_of_warp : flow_.sender, wanted - ahead});
      if (looks)
        seen = static_cast<uint32_t>(
            min(nvlink::load_acquire(flag) + ahead - first_, static_cast<uint64_t>(num_slots_)));
      if (!__all_sync(~0U, is_here ? 1 : 0)) {
        has_quit() = 1;
        return;
      }
      known = __reduce_min_sync(~0U, seen);
      if (lane_of_warp == 0) nvlink::store_release_shared(&memory_->may_use, known);
    }
  }

  // How many stores may be under way is a constant of the instruction that waits for them.
  __device__ void send_all(uint32_t open_tiles) {
    if (open_tiles >= 8)
      send_slots<8>();
    else if (open_tiles >= 4)
      send_slots<4>();
    else if (open_tiles >= 2)
      send_slots<2>();
    else
      send_slots<1>();
    nvlink::wait_until_stored<0>();
  }
  template <uint32_t kOpen>
  __device__ void send_slots() {
    Performed performed;
    for (uint32_t slot = 0; slot < num_slots_; ++slot) {
      const uint32_t length = slot_length(slot), tiles = num_tiles(length);
      std::byte* const to = view_.slot(first_ + slot);
      for (uint32_t i = 0; i < tiles; ++i) {
        const uint32_t tile = slot * tiles_a_slot_ + i;
        if (!await(arrived(tile), tile)) return;
        if (i == 0) {
          nvlink::before_bulk_copies();  // behind the watcher's look at the slot's flags
          copy_rest(to, flow_.source + begin_ + slot_begin(slot), length);
        }
        nvlink::store_bulk(to + i * kTileBytes, place(tile), tile_length(length, i));
        nvlink::close_stores();
        nvlink::wait_until_stored<kOpen - 1>();
        ++performed.stored;
        if (performed.stored >= kOpen) note_performed(&performed);
      }
    }
    nvlink::wait_until_stored<0>();
    while (performed.slot < num_slots_) note_performed(&performed);
  }
  /// Of a sender's tiles, one after the other.
  struct Performed {
    uint32_t stored = 0;             // tiles that were given to be stored
    uint32_t slot = 0, of_slot = 0;  // the next one to be performed: its slot, its place there
  };
  __device__ void note_performed(Performed* next) const {
    nvlink::arrive(emptied(next->slot * tiles_a_slot_ + next->of_slot));
    if (++next->of_slot < num_tiles(slot_length(next->slot))) return;
    next->of_slot = 0;
    nvlink::store_release_shared(&memory_->told_of, ++next->slot);
  }

  __device__ void take_all() {
    for (uint32_t slot = 0; slot < num_slots_; ++slot)
      if (!take_slot(slot)) break;
    nvlink::wait_until_stored<0>();
  }
  /// A slot's tiles to where they belong. It is free once the last of them has arrived.
  __device__ bool take_slot(uint32_t slot) {
    constexpr uint32_t kOpen = 4;  // stores under way: their tiles are still read
    const uint32_t length = slot_length(slot), tiles = num_tiles(length);
    const uint32_t first = slot * tiles_a_slot_;
    std::byte* const to = flow_.destination + begin_ + slot_begin(slot);
    for (uint32_t i = 0; i < tiles; ++i) {
      if (!await(arrived(first + i), first + i)) return false;
      if (i + 1 == tiles) nvlink::store_release_shared(&memory_->told_of, slot + 1);
      nvlink::store_bulk(to + i * kTileBytes, place(first + i), tile_length(length, i));
      nvlink::close_stores();
      if (i < kOpen) continue;
      nvlink::wait_until_read<kOpen>();
      nvlink::arrive(emptied(first + i - kOpen));
    }
    nvlink::wait_until_read<0>();
    for (uint32_t i = tiles > kOpen ? tiles - kOpen : 0; i < tiles; ++i)
      nvlink::arrive(emptied(first + i));
    return true;
  }

  // One flag for all slots since the last one. What the storer saw performed it counts with
  // release, and the teller reads with acquire: so its own release covers the bulk copies. That a
  // slot is free needs none: its bytes have come, so nothing that is written there later can change
  // them.
  __device__ void tell_all(bool sends) {
    uint64_t* const flag =
        sends ? &view_.counters->full.value : &view_.counters->free[team_.rank].value;
    for (uint32_t told = 0; told < num_slots_;) {
      const uint32_t told_of = nvlink::load_acquire_shared(&memory_->told_of);
      if (told_of == told) {
        if (has_quit() != 0) return;
        continue;
      }
      if (sends)
        nvlink::store_release(flag, first_ + told_of);
      else
        nvlink::store_relaxed(flag, first_ + told_of);
      told = told_of;
    }
    if (num_slots_ > 0) *progress_ = first_ + num_slots_;
  }

  BulkMemory* const memory_;
  const nvlink::Team& team_;
  const Flow& flow_;
  const RingView view_;
  uint64_t* const progress_;
  const uint64_t first_;  // this transfer's first slot, as the ring counts them
  const uint64_t begin_, bytes_;
  const uint32_t num_slots_, tiles_a_slot_;
};

#endif

}  // namespace braid::pcie
