// An entry: kThreads threads, two blocks of which have a place on a multiprocessor.
#pragma once

#include "moe/gpu/args.h"

#define BRAID_MOE_KERNEL(name, args_type)                                              \
  extern "C" __global__ void __launch_bounds__(braid::moe::gpu::kThreads, 2) name( \
      const __grid_constant__ braid::moe::gpu::args_type args)
