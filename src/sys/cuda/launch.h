// Kernel arguments by value instead of by an array of pointers.
#pragma once

#include <array>
#include <type_traits>

#include "sys/cuda/api.h"

namespace braid::sys {

/// The types of `args` must be the kernel's parameter types to the byte: nothing checks them.
template <typename... Args>
Status launch(Cuda& cuda, Kernel kernel, const LaunchShape& shape, Stream stream, Args... args) {
  static_assert((std::is_trivially_copyable_v<Args> && ...));
  std::array<void*, sizeof...(Args)> pointers{static_cast<void*>(&args)...};
  return cuda.launch_kernel(kernel, shape, stream, pointers);
}

}  // namespace braid::sys
