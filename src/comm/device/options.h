// What can be said of a GPU's options before there is one.
#pragma once

#include "base/config.h"
#include "base/status.h"

namespace braid::comm {

/// Whether BRAID_GPU_RDMA and BRAID_GPU_RING are words that the links know. Pure; invalid_argument.
Status check_gpu_options(const Config& config);

}  // namespace braid::comm
