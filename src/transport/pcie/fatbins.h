// The kernels of this folder as the build embeds them (cmake/cuda.cmake); empty without nvcc.
#pragma once

#include <cstddef>
#include <span>

namespace braid::kernels {

std::span<const std::byte> host_ring_fatbin();
std::span<const std::byte> host_ring_bulk_fatbin();
std::span<const std::byte> local_copy_fatbin();

}  // namespace braid::kernels
