// An entry: kThreads threads. Of kernels whose threads have few registers two blocks have a place on a
// multiprocessor; those that add up, or go through rounds, have one, and all that their threads need.
#pragma once

#include "moe/gpu/args.h"

#define BRAID_MOE_ENTRY(name, args_type, blocks)                                  \
  extern "C" __global__ void __launch_bounds__(braid::moe::gpu::kThreads, blocks) \
      name(const __grid_constant__ braid::moe::gpu::args_type args)
#define BRAID_MOE_KERNEL(name, args_type) BRAID_MOE_ENTRY(name, args_type, 2)
#define BRAID_MOE_WIDE_KERNEL(name, args_type) BRAID_MOE_ENTRY(name, args_type, 1)
