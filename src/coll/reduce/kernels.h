// The kernels behind reduce(): one function per element type and operator, built once per
// instruction set.
//
// The same source (kernels_body.h) is compiled three times with different flags, and reduce.cc
// picks one build at run time. What a build defines lives in a namespace of its own (generic, avx2,
// avx512): were an inline function shared, the linker could keep its AVX-512 copy for a machine
// without AVX-512.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace braid::coll {

/// Reduces num_srcs >= 2 arrays of `count` elements into dst; aliasing and bits as reduce()
/// promises. An average divides by `divisor`; other operators do not look at it.
using Kernel = void (*)(const void* const* srcs, size_t num_srcs, void* dst, uint64_t count,
                        size_t divisor);

enum class Isa : uint8_t { kGeneric, kAvx2, kAvx512 };
inline constexpr Isa kAllIsas[] = {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512};

const char* isa_name(Isa isa) noexcept;
/// True when this build has kernels for `isa` and this machine runs them.
bool has_isa(Isa isa) noexcept;
/// The kernel of a valid dtype and op; `isa` must be one that has_isa(). Never null.
Kernel find_kernel(Isa isa, Dtype dtype, RedOp op) noexcept;

namespace generic {
Kernel find_kernel(Dtype dtype, RedOp op) noexcept;
}
namespace avx2 {
Kernel find_kernel(Dtype dtype, RedOp op) noexcept;
}
namespace avx512 {
Kernel find_kernel(Dtype dtype, RedOp op) noexcept;
}

}  // namespace braid::coll
