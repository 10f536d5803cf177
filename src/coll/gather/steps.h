// Offsets of gather, for host and device alike: block r of root's recv is rank r's send.
#pragma once

#include <cstdint>

namespace braid::coll::gather_steps {

constexpr uint64_t block_offset(int rank, uint64_t block) {
  return static_cast<uint64_t>(rank) * block;
}

}  // namespace braid::coll::gather_steps
