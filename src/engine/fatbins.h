// The kernels of this folder as the build embeds them (cmake/cuda.cmake); empty without nvcc.
#pragma once

#include <cstddef>
#include <span>

namespace braid::kernels {

std::span<const std::byte> copy_pages_fatbin();

}  // namespace braid::kernels
