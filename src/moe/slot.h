// Slot: what lies where in a copy of a token, in the region of its source at the target.
//
//   token, 0        8 bytes
//   local ids [K]   int32, -1 for experts elsewhere
//   weights [K]     fp32, where the caller sends them; padded to kRowAlignment with the above
//   row             as it travels
//   scales          padded likewise
#pragma once

#include <cstdint>

#include "base/rounding.h"
#include "moe/window_layout.h"

namespace braid::moe {

/// Of a low-latency call. Offsets in bytes.
struct Slot {
  static constexpr uint64_t kIds = 8, kUnit = kRowAlignment;
  uint64_t row = 0, scales = 0, bytes = 0;

  /// Where weights begin.
  static constexpr uint64_t weights(int num_topk) {
    return kIds + 4 * static_cast<uint64_t>(num_topk);
  }

  constexpr Slot() = default;
  constexpr Slot(int num_topk, uint64_t row_bytes, uint64_t scale_bytes, bool has_weights = false)
      : row(round_up(weights(has_weights ? 2 * num_topk : num_topk), kUnit)),
        scales(row + row_bytes),
        bytes(round_up(scales + scale_bytes, kUnit)) {}
};

/// Of a normal call, which goes in rounds of `tokens` tokens of every rank; the first one's copies
/// lie behind an announcement of `begin` bytes. A dispatch's copy: token, local ids, weights, row,
/// side row; a combine's: weights, row.
struct Rounds {
  uint64_t begin = 0;
  uint64_t ids = 16, weights = 0, row = 0, side = 0;  // offsets in a copy
  uint64_t copy_bytes = 0;
  int32_t tokens = 0;  // of a round; 0: no copy fits

  constexpr int count(int32_t most_tokens) const {
    const int rounds = (most_tokens + tokens - 1) / tokens;
    return rounds > 1 ? rounds : 1;
  }
  constexpr int first(int round) const { return round * tokens; }
  constexpr int last(int round, int num_tokens) const {
    return num_tokens < first(round + 1) ? num_tokens : first(round + 1);
  }
};

inline constexpr uint64_t kMostRoundTokens = 1 << 24;

constexpr int32_t tokens_in(uint64_t room, uint64_t copy_bytes) {
  const uint64_t fit = room / copy_bytes;
  return static_cast<int32_t>(fit < kMostRoundTokens ? fit : kMostRoundTokens);
}

/// `local` experts on each of `num_ranks` ranks; `num_ids` and `num_weights` 0 where there are none.
constexpr Rounds dispatch_rounds(uint64_t region_bytes, int num_ranks, int local, int num_ids,
                                 int num_weights, uint64_t row_bytes, uint64_t side_bytes) {
  Rounds rounds;
  rounds.begin = round_up(4 * static_cast<uint64_t>(num_ranks + local), Slot::kUnit);
  rounds.weights = rounds.ids + 4 * static_cast<uint64_t>(num_ids);
  rounds.row = round_up(rounds.weights + 4 * static_cast<uint64_t>(num_weights), Slot::kUnit);
  rounds.side = rounds.row + row_bytes;
  rounds.copy_bytes = round_up(rounds.side + side_bytes, Slot::kUnit);
  rounds.tokens =
      region_bytes < rounds.begin ? 0 : tokens_in(region_bytes - rounds.begin, rounds.copy_bytes);
  return rounds;
}

constexpr Rounds combine_rounds(uint64_t region_bytes, int num_weights, uint64_t row_bytes) {
  Rounds rounds;
  rounds.row = round_up(4 * static_cast<uint64_t>(num_weights), Slot::kUnit);
  rounds.copy_bytes = round_up(rounds.row + row_bytes, Slot::kUnit);
  rounds.tokens = tokens_in(region_bytes, rounds.copy_bytes);
  return rounds;
}

}  // namespace braid::moe
