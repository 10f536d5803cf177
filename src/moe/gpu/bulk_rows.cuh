// Rows on their way through shared memory, by bulk copies (sm_90 and later). A block has
// kBulkStages stages for each of its warps, in dynamic shared memory. A warp deals with pieces of rows one
// by one: lane 0 loads a piece into a stage, and kBulkAhead pieces later it is stored to wherever it goes, by
// a lane for each place. So a multiprocessor has as much under way as its shared memory holds, where
// registers hold a quarter of it and threads stand and wait.
//
// Order     A load is whole when its stage's mbarrier says so. A stage is loaded anew when all lanes'
//           stores of it have read it. What was stored may be told of behind await_stored(), of every
//           lane; what a flag told of may be loaded behind before_bulk_copies(), of lane 0.
#pragma once

#include "device/bulk.cuh"
#include "moe/gpu/rows.cuh"

namespace braid::moe::gpu {

/// How a row of `bytes` is cut into pieces of about one size, none of more than a stage.
struct BulkCut {
  uint32_t bytes, of_piece;
  int32_t pieces;

  /// Of rows that do not go in bulk, whose `stage_bytes` are 0: none.
  __device__ __forceinline__ static BulkCut of(uint32_t bytes, uint32_t stage_bytes) {
    if (stage_bytes == 0) return {};
    const uint32_t pieces = (bytes + stage_bytes - 1) / stage_bytes;
    const uint32_t each = (bytes + pieces - 1) / pieces;
    return {bytes, (each + kBulkUnit - 1) / kBulkUnit * kBulkUnit, static_cast<int32_t>(pieces)};
  }
  /// Pieces of many rows are numbered row by row.
  struct Piece {
    int32_t row;
    uint32_t begin, end;  // bytes of it
  };
  __device__ __forceinline__ Piece operator[](int number) const {
    const int32_t row = number / pieces, piece = number - row * pieces;
    return {row, border(piece), border(piece + 1)};
  }

 private:
  __device__ __forceinline__ uint32_t border(int piece) const {
    return min(bytes, static_cast<uint32_t>(piece) * of_piece);
  }
};

/// A piece of a row and the side row behind it, which are one in a slot and two elsewhere:
/// each(place, offset, bytes) of either, offset from the piece's beginning on.
template <typename Byte, typename Each>
__device__ __forceinline__ void each_part(Byte* row, Byte* side, uint32_t row_bytes,
                                          const BulkCut::Piece& piece, const Each& each) {
  if (piece.begin < row_bytes) each(row + piece.begin, 0U, min(piece.end, row_bytes) - piece.begin);
  if (piece.end <= row_bytes) return;
  const uint32_t from = max(piece.begin, row_bytes);
  each(side + (from - row_bytes), from - piece.begin, piece.end - from);
}

/// Whether side rows move along with rows: vectors as those are.
__device__ __forceinline__ bool is_of_vectors(const std::byte* side, uint64_t side_bytes) {
  return (reinterpret_cast<uint64_t>(side) | side_bytes) % kVectorBytes == 0;
}

#if __CUDA_ARCH__ >= 900

class BulkRows {
 public:
  /// All threads. `stage_bytes`: a multiple of kBulkUnit; 0 where the launch has no room for stages.
  __device__ explicit BulkRows(uint32_t stage_bytes) : stage_bytes_(stage_bytes) {
    extern __shared__ __align__(128) unsigned char dynamic_memory[];
    __shared__ uint64_t barriers[kWarps][kBulkStages];
    const auto warp = static_cast<uint32_t>(warp_of_thread());
    stages_ = device::shared_address(dynamic_memory) + warp * kBulkStages * stage_bytes;
    barriers_ = device::shared_address(barriers[warp]);
    if (lane_of_thread() == 0)
      for (uint32_t stage = 0; stage < kBulkStages; ++stage)
        device::init_mbarrier(barriers_ + 8 * stage, 1);
    device::publish_mbarriers();
    __syncwarp();
  }
  __device__ __forceinline__ bool are_used() const { return stage_bytes_ != 0; }
  __device__ __forceinline__ BulkCut cut(uint64_t bytes) const {
    return BulkCut::of(static_cast<uint32_t>(bytes), stage_bytes_);
  }

  /// By every warp: of the pieces of so many rows its own ones. load(piece, load_part), by lane 0, calls
  /// load_part(from, offset, bytes) for all of it; store(piece, store_part), by every lane,
  /// store_part(to, offset, bytes) for what this lane is to store. Ends when all is loaded and all stores
  /// are on their way.
  template <typename Load, typename Store>
  __device__ __forceinline__ void move(int num_rows, const BulkCut& cut, const Load& load,
                                       const Store& store) {
    const int first = warp_of_thread(), pieces = num_rows * cut.pieces;
    const int own = pieces > first ? (pieces - first + kWarps - 1) / kWarps : 0;
    for (int turn = 0; turn < own + kBulkAhead; ++turn) {
      if (turn < own) {
        device::wait_until_read<kBulkStages - 1 - kBulkAhead>();
        __syncwarp();  // all lanes' stores have read the stage
        const BulkCut::Piece piece = cut[first + turn * kWarps];
        if (lane_of_thread() == 0)
          begin_load(piece.end - piece.begin, [&](const auto& part) { load(piece, part); });
        ++loaded_;
      }
      if (turn < kBulkAhead) continue;
      const uint32_t at = stored_ % kBulkStages;
      device::wait_mbarrier(barriers_ + 8 * at, stored_ / kBulkStages % 2);
      store(cut[first + (turn - kBulkAhead) * kWarps],
            [&](std::byte* to, uint32_t offset, uint32_t bytes) {
              device::store_bulk(to, stage(at) + offset, bytes);
            });
      device::close_stores();
      ++stored_;
    }
  }
  /// All threads: until all that was stored may be told of.
  __device__ __forceinline__ void await_stored() const { device::wait_until_stored<0>(); }
  __device__ __forceinline__ void behind_flags() const { device::before_bulk_copies(); }

 private:
  __device__ __forceinline__ uint32_t stage(uint32_t at) const {
    return stages_ + at * stage_bytes_;
  }
  template <typename EachPart>
  __device__ __forceinline__ void begin_load(uint32_t bytes, const EachPart& each_part) const {
    const uint32_t at = loaded_ % kBulkStages, barrier = barriers_ + 8 * at;
    device::arrive_and_expect(barrier, bytes);
    each_part([&](const std::byte* from, uint32_t offset, uint32_t part_bytes) {
      device::load_bulk(stage(at) + offset, from, part_bytes, barrier);
    });
  }

  uint32_t stage_bytes_, stages_, barriers_;
  uint32_t loaded_ = 0, stored_ = 0;  // pieces of this warp, since ever
};

#else

/// There are no bulk copies.
class BulkRows {
 public:
  __device__ explicit BulkRows(uint32_t) {}
  __device__ __forceinline__ bool are_used() const { return false; }
  __device__ __forceinline__ BulkCut cut(uint64_t) const { return {}; }
  template <typename Load, typename Store>
  __device__ __forceinline__ void move(int, const BulkCut&, const Load&, const Store&) {}
  __device__ __forceinline__ void await_stored() const {}
  __device__ __forceinline__ void behind_flags() const {}
};

#endif

}  // namespace braid::moe::gpu
