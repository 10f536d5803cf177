// The kernels of this folder as the build embeds them (cmake/cuda.cmake); empty without nvcc.
#pragma once

#include <cstddef>
#include <span>

namespace braid::kernels {

std::span<const std::byte> count_fatbin();
std::span<const std::byte> gather_fatbin();
std::span<const std::byte> scatter_fatbin();
std::span<const std::byte> exchange_fatbin();

}  // namespace braid::kernels
