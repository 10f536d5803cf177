// GPU links as observers tell of them, in the order of registry.cc.
#pragma once

#include <array>

namespace braid::comm {

inline constexpr std::array kGpuLinkNames{"nvlink", "pcie", "nic"};

}  // namespace braid::comm
