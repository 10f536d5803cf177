// GPU links as observers tell of them, beginning with NVLink, then those of registry.cc in their
// order.
#pragma once

#include <array>

namespace braid::comm {

inline constexpr std::array kGpuLinkNames{"nvlink", "pcie", "nic"};

}  // namespace braid::comm
