// What one rank can see of a call's arguments on the host, and what only kernels ask of them.
#pragma once

#include "base/status.h"

namespace braid::moe::gpu {

/// Rows are read and written in vectors.
Status check_place(const void* at, const char* argument);
/// Kernels keep what is of each expert, and of each choice of a token, in memory of these sizes.
Status check_counts(int num_experts, int num_topk);

}  // namespace braid::moe::gpu
