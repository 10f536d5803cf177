// Reduce kernels of the integers: four loads in flight a thread.
#include "coll/reduce/ring_body.cuh"

BRAID_REDUCE_SIGNED_KERNELS(int8, Whole<int8_t>, 1)
BRAID_REDUCE_KERNELS(uint8, Whole<uint8_t>, 1)
BRAID_REDUCE_SIGNED_KERNELS(int16, Whole<int16_t>, 1)
BRAID_REDUCE_KERNELS(uint16, Whole<uint16_t>, 1)
BRAID_REDUCE_SIGNED_KERNELS(int32, Whole<int32_t>, 1)
BRAID_REDUCE_KERNELS(uint32, Whole<uint32_t>, 1)
BRAID_REDUCE_SIGNED_KERNELS(int64, Whole<int64_t>, 1)
BRAID_REDUCE_KERNELS(uint64, Whole<uint64_t>, 1)
