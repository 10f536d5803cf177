// Offsets of reduce_scatter, for host and device alike: rank r owns block r of every rank's send.
#pragma once

#include <cstdint>

namespace braid::coll::reduce_scatter_steps {

constexpr uint64_t block_offset(int rank, uint64_t block) {
  return static_cast<uint64_t>(rank) * block;
}

}  // namespace braid::coll::reduce_scatter_steps
