#include "overlap/count.h"

extern "C" __global__ void braid_count(const __grid_constant__ braid::overlap::CountArgs args) {
  const uint64_t epoch = *args.epoch + 1;
  for (uint32_t i = threadIdx.x; i < args.num_copies; i += blockDim.x) args.copies[i] = epoch;
  for (uint32_t i = threadIdx.x; i < args.num_counters; i += blockDim.x) args.counters[i] = 0;
  __syncthreads();
  if (threadIdx.x == 0) *args.epoch = epoch;
}
