// The kernels of this folder as the build embeds them (cmake/cuda.cmake); empty without nvcc.
#pragma once

#include <cstddef>
#include <span>

namespace braid::kernels {

std::span<const std::byte> layout_counts_fatbin();
std::span<const std::byte> low_latency_dispatch_fatbin();
std::span<const std::byte> low_latency_combine_fatbin();
std::span<const std::byte> normal_dispatch_fatbin();
std::span<const std::byte> normal_combine_fatbin();
std::span<const std::byte> rank_combine_fatbin();

}  // namespace braid::kernels
