// A lane of the ring by bulk asynchronous copies (sm_90 and later): three threads of a block move
// what 512 do by plain loads and stores, and PCIe sees whole rows. Between memory and slots lie
// tiles of shared memory, used again and again in order:
//
//             warp 0, the loader                       warps 1 and 2, the storers
//   sender    source -> tiles                          a slot each in turn: wait until it is free,
//                                                      tiles -> slot, wait until that is performed,
//                                                      then full, in the slots' order
//   reader    wait until full, slot -> tiles           warp 1: tiles -> destination; free as soon
//                                                      as the slot's last tile has arrived
//
// Lane 0 of each warp does its part. Two storers, because a slot's way to the host takes as long as
// filling it: one stood still between slots (25 GB/s with 4 lanes, 31 with two).
//
// Who writes what: a tile has an mbarrier `arrived`, which the loader's copies complete, and one
// `emptied`, at which the storer arrives once its own copy has read the tile; the loader waits for
// it before the tile's next use. Tiles are numbered through a transfer, and use u of a tile is
// phase u of both. A phase's parity tells a use from the one before and the one after, no more: so
// every tile is the same storer's in every round, which who launches the kernel sees to (kTiles is
// a multiple of the tiles of kStorers slots). A slot's bytes beyond whole 16 are copied by the
// thread that waits for the slot.
//
// Why it cannot hang: waits for other ranks are team.cuh's. Whoever gives up says so in `has_quit`,
// at which the waits within the block look, and so they end as well. And nothing is left in flight
// when the block ends: the loader waits for what it has asked for, the storers for what they wrote,
// or it would land in the shared memory of somebody else.
#pragma once

#include "transport/nvlink/bulk_copy.cuh"
#include "transport/pcie/ring_view.cuh"

namespace braid::pcie {

#if __CUDA_ARCH__ >= 900

/// What the block's three threads share.
struct BulkMemory {
  alignas(128) std::byte tiles[kTiles][kTileBytes];
  uint64_t arrived[kTiles];
  uint64_t emptied[kTiles];
  uint32_t next_full;  // the slot of this transfer that is to be told of next
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
      memory_->next_full = 0;
      memory_->has_quit = 0;
      nvlink::publish_mbarriers();
    }
    __syncthreads();
  }

  /// By lane 0 of a warp.
  __device__ void run(uint32_t warp) {
    const bool sends = flow_.source != nullptr;
    if (warp == 0) load_all(sends);
    if (warp >= 1 && warp <= kStorers && sends) send_slots(warp - 1);
    if (warp == 1 && !sends) take_slots();
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
      if (!load_slot(slot, sends, &end)) {
        has_quit() = 1;
        break;
      }
    for (uint32_t tile = end > kTiles ? end - kTiles : 0; tile < end; ++tile)
      while (!nvlink::is_over(arrived(tile), tile / kTiles)) {
      }
  }
  __device__ bool load_slot(uint32_t slot, bool sends, uint32_t* end) const {
    const uint32_t length = slot_length(slot), tiles = num_tiles(length);
    const uint64_t at = begin_ + slot_begin(slot);
    const std::byte* from = sends ? flow_.source + at : view_.slot(first_ + slot);
    if (!sends) {
      if (!view_.await_full(team_, flow_.sender, first_ + slot)) return false;
      nvlink::before_bulk_copies();
      copy_rest(flow_.destination + at, from, length);
    }
    for (uint32_t i = 0; i < tiles; ++i) {
      const uint32_t tile = slot * tiles_a_slot_ + i;
      if (tile >= kTiles && !await(emptied(tile), tile - kTiles)) return false;
      nvlink::load_bulk(place(tile), from + i * kTileBytes, tile_length(length, i), arrived(tile));
      *end = tile + 1;
    }
    return true;
  }

  __device__ void send_slots(uint32_t storer) {
    for (uint32_t slot = storer; slot < num_slots_; slot += kStorers)
      if (!send_slot(slot)) {
        has_quit() = 1;
        break;
      }
    nvlink::wait_until_stored<0>();
  }
  __device__ bool send_slot(uint32_t slot) {
    const uint64_t number = first_ + slot;
    for (int reader = 0; reader < team_.size; ++reader)
      if (is_reader(team_, flow_.key, reader) && !view_.await_free(team_, reader, number))
        return false;
    nvlink::before_bulk_copies();
    if (!store_slot(slot, view_.slot(number), [] {})) return false;
    copy_rest(view_.slot(number), flow_.source + begin_ + slot_begin(slot), slot_length(slot));
    nvlink::wait_until_stored<0>();
    while (load_turn() != slot)
      if (has_quit() != 0) return false;
    nvlink::store_release(&view_.counters->full.value, number + 1);
    if (slot + 1 == num_slots_) *progress_ = number + 1;
    store_turn(slot + 1);
    return true;
  }

  __device__ void take_slots() {
    for (uint32_t slot = 0; slot < num_slots_; ++slot)
      if (!take_slot(slot)) break;
    nvlink::wait_until_stored<0>();
  }
  __device__ bool take_slot(uint32_t slot) {
    const uint64_t end = first_ + slot + 1;
    const bool is_taken = store_slot(slot, flow_.destination + begin_ + slot_begin(slot), [&] {
      nvlink::store_release(&view_.counters->free[team_.rank].value, end);
    });
    if (is_taken && slot + 1 == num_slots_) *progress_ = end;
    return is_taken;
  }

  /// A slot's tiles to where they belong; they are empty again afterwards. `all_here` is called
  /// once the last of them has arrived.
  template <typename AllHere>
  __device__ bool store_slot(uint32_t slot, std::byte* to, const AllHere& all_here) const {
    constexpr uint32_t kOpen = 4;  // stores under way: their tiles are still read
    const uint32_t length = slot_length(slot);
    const uint32_t first = slot * tiles_a_slot_, tiles = num_tiles(length);
    for (uint32_t i = 0; i < tiles; ++i) {
      if (!await(arrived(first + i), first + i)) return false;
      if (i + 1 == tiles) all_here();
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

  __device__ uint32_t load_turn() const {
    uint32_t turn;
    asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];"
                 : "=r"(turn)
                 : "r"(nvlink::shared_address(&memory_->next_full))
                 : "memory");
    return turn;
  }
  __device__ void store_turn(uint32_t turn) const {
    asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(
                     nvlink::shared_address(&memory_->next_full)),
                 "r"(turn)
                 : "memory");
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
