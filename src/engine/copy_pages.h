// Copies of many stretches by one kernel (copy_pages.cu): a copy by the driver costs some
// microseconds each, which is more than a page of 64 KiB takes.
#pragma once

#include <cstdint>

namespace braid::engine {

/// One stretch. Addresses are the GPU's: its own memory, a peer's that is mapped, or pinned memory
/// of the host.
struct PageCopy {
  uint64_t to = 0, from = 0, bytes = 0;
};

inline constexpr uint32_t kCopyThreads = 512;

}  // namespace braid::engine
