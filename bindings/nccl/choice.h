// What a race of braid and NCCL has shown of one operation on one communicator (core/race.h), and
// which of its calls braid therefore takes. Pure; the same on all ranks, who were told the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "bindings/nccl/core.h"

namespace braid::nccl {

/// Sizes at which both are timed, in bytes of all ranks' blocks together, as bytes_of() counts.
/// Four times as much each: what wins at 4 MiB may lose at 32, among four GPUs an all-reduce of
/// 256 MiB wins and one of 512 MiB loses (docs/measured/nccl.md).
inline constexpr std::array<uint64_t, 9> kRacedBytes = {8ULL << 10,   32ULL << 10,  128ULL << 10,
                                                        512ULL << 10, 2ULL << 20,   8ULL << 20,
                                                        32ULL << 20,  128ULL << 20, 512ULL << 20};
inline constexpr size_t kNumRaced = kRacedBytes.size();
static_assert(kNumRaced < 32, "a bit each");
inline constexpr uint32_t kAllRaced = (uint32_t{1} << kNumRaced) - 1;

/// Sizes up to here are small: braid needs little memory for them (coll/device/entry.h), and they are
/// raced when the first such call comes. Large ones are, and have their memory, when one of them
/// does.
inline constexpr size_t kNumSmall = 6;
inline constexpr uint64_t kMostSmallBytes = kRacedBytes[kNumSmall - 1];
constexpr bool is_large(uint64_t bytes) { return bytes > kMostSmallBytes; }

/// Whether braid was at least as much faster as it must be at size `i`.
constexpr bool is_won(const braid_nccl_choice& choice, size_t i) {
  return ((choice.measured & choice.won) >> i & 1U) != 0;
}

/// Whether a message of `bytes` is braid's. Between two sizes both must have been won, for nobody
/// knows where the curves meet. Beyond the last size links are full and the curves straight: it
/// speaks for all larger ones where the one before was won, too.
constexpr bool is_braids(const braid_nccl_choice& choice, uint64_t bytes) {
  if (bytes <= kRacedBytes.front()) return is_won(choice, 0);
  for (size_t i = 1; i < kNumRaced; ++i) {
    if (bytes > kRacedBytes[i]) continue;
    return is_won(choice, i) && (bytes == kRacedBytes[i] || is_won(choice, i - 1));
  }
  return is_won(choice, kNumRaced - 1) && is_won(choice, kNumRaced - 2);
}

}  // namespace braid::nccl
