#include <algorithm>

#include "coll/relay/relay.h"

namespace braid::coll {

RelayShape relay_shape(uint64_t bytes, int num_ranks) noexcept {
  const auto num_others = static_cast<uint32_t>(std::max(num_ranks - 1, 1));
  const uint64_t for_flags = divided_up(bytes, uint64_t{num_others} * kMostRelayRows);
  const uint64_t unit_bytes = round_up(for_flags, kBulkTileBytes);
  return {bytes, num_others, std::max(static_cast<uint32_t>(unit_bytes), kLeastRelayUnitBytes)};
}

// 256 MiB on 4 H200 with 16, 24, 32 and 48: 793, 793, 793 and 797 us.
uint32_t relay_blocks(const RelayShape& shape) noexcept {
  const uint32_t for_rows = (shape.num_rows() + kBulkMovers - 1) / kBulkMovers;
  return std::clamp<uint32_t>(for_rows, 1, kMostRelayBlocks);
}

}  // namespace braid::coll
