// Short blocks: what pairs of ranks have to send each other, by one kernel after a barrier of all.
// For blocks so short that a copy engine would take longer to begin than they take.
//
// A pair's bytes are cut into parts, one for each block of threads, which has its part of both
// directions: it stores what goes out into the peer's scratch, then the flag of that part; waits
// for the peer's flag, and copies what came to its place.
//
// Flags    One word per (source, part) on the receiver's signal pad, behind its signals. It holds the
//          number of the barrier that opened the call: ranks count barriers alike, so nothing else
//          has to be counted, and a flag only grows. It has one writer.
//
// Nothing tears: a part is read after an acquire that saw the call's number, which was released
// after a barrier of the block that wrote the part.
// Nothing is overwritten: all ranks have passed the barrier, so that earlier calls have taken what
// was theirs out of the scratch, and in this one a pair has its place there for itself.
// Why it cannot hang: a block stores before it waits, so blocks wait for nothing but to be started,
// and all of them have room on a GPU at once; team.cuh for what else may go wrong.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/nvlink/barrier.h"
#include "transport/nvlink/team.h"

namespace braid::nvlink {

inline constexpr int kMostShortParts = 12;
static_assert(kMostShortParts <= sizeof(Signal::short_flags) / sizeof(uint64_t));
inline constexpr int kShortThreads = 512;
inline constexpr uint64_t kShortPartBytes = 32 << 10;  // at most, of a direction

/// A pair's, as one of its ranks sees it; or what this rank sends itself, `peer` being its own.
struct ShortBlock {
  const std::byte* out;
  std::byte* theirs;      // where it goes in the peer's scratch
  const std::byte* ours;  // where the peer's comes in our scratch
  std::byte* in;
  uint64_t out_bytes;
  uint64_t in_bytes;
  int32_t peer;
};

struct ShortBlocks {
  int32_t num_blocks;
  int32_t num_parts;  // of each; the same on all ranks
  ShortBlock block[kMostRanks];
};

/// 64 blocks of threads for all pairs together at most, whatever their number.
constexpr int short_parts(int num_ranks) {
  const int wanted = 64 / num_ranks;
  return wanted < 1 ? 1 : wanted > kMostShortParts ? kMostShortParts : wanted;
}
/// The longest block that is short.
constexpr uint64_t short_bytes(int num_ranks) {
  return static_cast<uint64_t>(short_parts(num_ranks)) * kShortPartBytes;
}

/// A part of a block: whole 16-byte units, the last part takes what is left.
constexpr uint64_t short_part_begin(uint64_t bytes, int part, int num_parts) {
  if (part == num_parts) return bytes;
  return bytes / 16 * static_cast<uint64_t>(part) / static_cast<uint64_t>(num_parts) * 16;
}
static_assert(short_part_begin(100, 1, 2) == 48 && short_part_begin(100, 2, 2) == 100);

/// On `rank`'s signal pad: of a part that `source` sends it.
constexpr uint64_t* short_flag(const SignalPad& pad, int rank, int source, int part) {
  return &signal_of(pad, rank, kPairChannel, source)->short_flags[part];
}

}  // namespace braid::nvlink
