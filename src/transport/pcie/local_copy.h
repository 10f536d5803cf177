// A copy within a GPU while the host ring runs beside it (local_copy.cu).
#pragma once

#include <cstdint>

namespace braid::pcie {

inline constexpr uint32_t kLocalTileBytes = 8 << 10;
inline constexpr uint32_t kLocalTiles = 16;
inline constexpr uint32_t kLocalThreads = 32;
inline constexpr uint32_t kLocalSharedBytes = kLocalTiles * (kLocalTileBytes + 8) + 128;

}  // namespace braid::pcie
