#include <algorithm>

#include "coll/relay/relay.h"

namespace braid::coll {

// 256 MiB on 4 H200: 845 us with 64, 920 with 32, 1,066 with 16, 906 with 96.
uint32_t relay_blocks(uint64_t bytes, int num_ranks) noexcept {
  const RelayShape shape{bytes, static_cast<uint32_t>(std::max(num_ranks - 1, 1)), 1};
  return std::clamp<uint32_t>((shape.num_rows() + kBulkMovers - 1) / kBulkMovers, 1,
                              kMostRelayBlocks);
}

}  // namespace braid::coll
