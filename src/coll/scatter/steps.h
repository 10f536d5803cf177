// Offsets of scatter, for host and device alike: block r of root's send is for rank r.
#pragma once

#include <cstdint>

namespace braid::coll::scatter_steps {

constexpr uint64_t block_offset(int rank, uint64_t block) {
  return static_cast<uint64_t>(rank) * block;
}

}  // namespace braid::coll::scatter_steps
