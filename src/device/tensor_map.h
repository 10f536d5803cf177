// A tensor map, by which the copy engine of a multiprocessor finds tiles of a matrix: 128 bytes
// that the driver writes (sys::Cuda::tensor_map) and the hardware reads.
#pragma once

#include <cstdint>

namespace braid::device {

struct alignas(64) TensorMap {
  uint64_t opaque[16];
};
static_assert(sizeof(TensorMap) == 128);

}  // namespace braid::device
