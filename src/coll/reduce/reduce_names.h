// Which entry of the device code reduces what.
//
// Sums and products of signed integers wrap, and have the bits of unsigned ones: they have no
// kernels of their own. (A fifth of the integers' kernels, which take longest to compile.)
#pragma once

#include "base/dtype.h"

namespace braid::coll {

/// The dtype whose kernels reduce `dtype` by `op`: most often itself.
Dtype kernel_dtype(Dtype dtype, RedOp op) noexcept;

// In the names <dtype> is that one.

/// "braid_reduce_<dtype>_<op>", the entry that takes ReduceArgs; nullptr outside the enums.
const char* reduce_kernel_name(Dtype dtype, RedOp op) noexcept;

/// "braid_packets_reduce_<dtype>_<op>", the entry that takes PacketArgs (packets.h); nullptr
/// outside the enums.
const char* packet_reduce_kernel_name(Dtype dtype, RedOp op) noexcept;

/// "braid_lines_reduce_<dtype>_<op>", the entry that takes PacketArgs (lines.h); nullptr outside
/// the enums.
const char* line_reduce_kernel_name(Dtype dtype, RedOp op) noexcept;

/// "braid_direct_reduce_<dtype>_<op>", the entry that takes DirectArgs (direct.h); nullptr outside
/// the enums.
const char* direct_reduce_kernel_name(Dtype dtype, RedOp op) noexcept;

}  // namespace braid::coll
