// An entry: kThreads threads, one block on a multiprocessor, with all the registers that its threads need.
// Two blocks, of threads with half as many, are not faster: some of those kept values in local memory, and
// waited for it.
#pragma once

#include "moe/gpu/args.h"

#define BRAID_MOE_KERNEL(name, args_type)                                    \
  extern "C" __global__ void __launch_bounds__(braid::moe::gpu::kThreads, 1) \
      name(const __grid_constant__ braid::moe::gpu::args_type args)
