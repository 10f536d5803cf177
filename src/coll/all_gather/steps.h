// Offsets of all_gather, for host and device alike: block r of recv is rank r's send.
#pragma once

#include <cstdint>
#include <span>

namespace braid::coll::all_gather_steps {

constexpr uint64_t block_offset(int rank, uint64_t block) {
  return static_cast<uint64_t>(rank) * block;
}

/// First element of block `rank` when the blocks have `counts` elements.
constexpr uint64_t block_begin(int rank, std::span<const uint64_t> counts) {
  uint64_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += counts[static_cast<size_t>(r)];
  return begin;
}

}  // namespace braid::coll::all_gather_steps
