// Where peers' bytes may land.
#pragma once

#include <cstdint>

#include "transport/nvlink/window.h"

namespace braid::comm {

/// `offset_bytes` into a window that every rank has.
struct SymmetricAddress {
  const nvlink::Window* window = nullptr;  // null: not registered
  uint64_t offset_bytes = 0;
  uint64_t number = 0;  // of the registration, from 1: the same on all ranks
  sys::DevicePtr at(int rank) const { return window->at(rank) + offset_bytes; }
};

}  // namespace braid::comm
