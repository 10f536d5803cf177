// The kernels of this folder as the build embeds them (cmake/cuda.cmake); empty without nvcc.
#pragma once

#include <cstddef>
#include <span>

namespace braid::kernels {

std::span<const std::byte> barrier_fatbin();
std::span<const std::byte> hold_fatbin();
std::span<const std::byte> short_blocks_fatbin();

}  // namespace braid::kernels
