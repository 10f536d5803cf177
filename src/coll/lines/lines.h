// Messages between small and middle size by lines: 120 bytes of data and the call's number in each
// 128 bytes, so that a receiver needs neither a fence nor a second trip, as with packets, and
// NVLink carries 94 % data instead of 50. The protocol, and why it is right, is told in lines.cuh.
//
// Entries, all with PacketArgs (an area and a state of their own): braid_lines_all_gather,
// braid_lines_all_to_all, braid_lines_broadcast, each with _wide behind it where is_wide(); and per
// dtype and op line_reduce_kernel_name() (reduce_names.h), which is all-reduce and reduce-scatter.
// The calls are those that packets know.
#pragma once

#include <cstdint>

#include "coll/packets/packets.h"

namespace braid::coll {

inline constexpr uint64_t kLineBytes = 128;
inline constexpr uint64_t kLineFlagBytes = 8;

/// What a warp sends at a time: a vector of 16 bytes per lane, of which every eighth is half flag.
inline constexpr uint64_t kRowBytes = 512;
inline constexpr uint64_t kRowDataBytes = kRowBytes / kLineBytes * (kLineBytes - kLineFlagBytes);
static_assert(kRowDataBytes == 480);

/// Of a block.
inline constexpr uint32_t kLineThreads = 512;

/// Among more than four a warp looks at a row of every peer at a time (wide.cuh); among fewer peers
/// take turns.
constexpr bool is_wide(int num_ranks) noexcept { return num_ranks > 4; }

/// The most blocks of a call on GPUs of which the smallest has `num_sms` multiprocessors. Where 128
/// leave some over, so that another comm's kernels get on beside them; else 64. Numbers between are
/// worse than either, because two blocks share the way out of a pair of multiprocessors, and some
/// would have it alone (H200, all-reduce of 16 MiB: 64 blocks 62 us, 96 67, 128 61; of 4 MiB 22.4,
/// 20.4, 19.9).
uint32_t most_line_blocks(int num_sms) noexcept;

/// How to launch a call of `bytes` as PacketArgs counts them. Depends on nothing else, so that all
/// ranks choose alike.
PacketShape lines_shape(plan::Op op, uint64_t bytes, int num_ranks, uint32_t most_blocks) noexcept;

/// What that call needs of PacketArea::capacity_bytes.
uint64_t line_call_bytes(plan::Op op, uint64_t bytes, int num_ranks) noexcept;

/// The largest message (the larger buffer, as all ranks' blocks) of `op` for which this is faster
/// than what comes next, where an all-gather's among two is `limit_bytes`.
uint64_t line_most_bytes(plan::Op op, uint64_t limit_bytes, int num_ranks) noexcept;

/// A capacity for every call up to line_most_bytes().
uint64_t line_area_bytes(uint64_t limit_bytes, int num_ranks) noexcept;

}  // namespace braid::coll
