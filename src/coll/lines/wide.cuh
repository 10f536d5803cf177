// Lines among many ranks: one row of every peer at a time, instead of several rows of one peer
// after the other. Up to a MiB from each rank a warp has a row a peer anyway, and looks that follow
// each other cost the latency of memory for each (docs/decisions/0012). Everything else is as in
// lines.cuh.
#pragma once

#include "coll/lines/lines.cuh"

namespace braid::coll::device {

inline constexpr int kPeersAtOnce = 8;   // of a warp, in flight together
inline constexpr int kSummedAtOnce = 4;  // beside sums, which take registers too

template <int kPeers>
using RowOfEach = Vector[kPeers];  // of ranks [first, first + kPeers)

/// Row `row` of what piece_of(rank) is, of every rank that there is.
template <int kPeers, typename PieceOf>
__device__ __forceinline__ void load_row_of_each(const BlockCall& call, int first,
                                                 const PieceOf& piece_of, uint64_t row,
                                                 RowOfEach<kPeers>& data) {
#pragma unroll
  for (int k = 0; k < kPeers; ++k)
    if (first + k < call.size()) data[k] = load_lane(piece_of(first + k), row);
}

/// To the slot of every peer that begins with row slot_of(peer).
template <int kPeers, typename SlotOf>
__device__ __forceinline__ void send_row_of_each(const BlockCall& call, int first,
                                                 const SlotOf& slot_of, uint64_t row,
                                                 const RowOfEach<kPeers>& data) {
  __syncwarp();
#pragma unroll
  for (int k = 0; k < kPeers; ++k) {
    const int to = first + k;
    if (to < call.size() && to != call.rank())
      send_row(call, row_at(call, to, slot_of(to) + row), data[k]);
  }
}

/// Waits for a row of every rank for which waits_for(rank) holds, from its slot of our half. False:
/// gave up.
template <int kPeers, typename WaitsFor, typename SlotOf>
__device__ __forceinline__ bool receive_row_of_each(const BlockCall& call, int first,
                                                    const WaitsFor& waits_for,
                                                    const SlotOf& slot_of, uint64_t row,
                                                    RowOfEach<kPeers>& data) {
  for (WarpPatience patience;;) {
    int missing = -1;
    uint32_t seen = 0;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kPeers; ++k)
      if (first + k < call.size() && waits_for(first + k))
        data[k] = look_at_row(row_at(call, call.rank(), slot_of(first + k) + row));
#pragma unroll
    for (int k = 0; k < kPeers; ++k)
      if (first + k < call.size() && waits_for(first + k) && !has_arrived(call, data[k])) {
        missing = first + k;
        seen = data[k].words[2];
      }
    const uint32_t lanes = __ballot_sync(kWholeWarp, missing >= 0 ? 1 : 0);
    if (lanes == 0) return true;
    const int lane = __ffs(static_cast<int>(lanes)) - 1;
    if (!patience.holds(call, __shfl_sync(kWholeWarp, missing, lane),
                        __shfl_sync(kWholeWarp, seen, lane)))
      return false;
  }
}

/// Every peer's row to its place, but `but`'s: -1 for none.
template <typename SlotOf, typename PlaceOf>
__device__ __forceinline__ bool take_rows(const BlockCall& call, int but, const SlotOf& slot_of,
                                          const PlaceOf& place_of, uint64_t row) {
  const auto waits_for = [&](int from) { return from != call.rank() && from != but; };
#pragma unroll 1
  for (int first = 0; first < call.size(); first += kPeersAtOnce) {
    RowOfEach<kPeersAtOnce> data;
    if (!receive_row_of_each(call, first, waits_for, slot_of, row, data)) return false;
#pragma unroll
    for (int k = 0; k < kPeersAtOnce; ++k)
      if (first + k < call.size() && waits_for(first + k))
        store_lane(place_of(first + k), row, data[k]);
  }
  return true;
}

}  // namespace braid::coll::device
