// Which entry of the device code reduces what.
#pragma once

#include "base/dtype.h"

namespace braid::coll {

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
