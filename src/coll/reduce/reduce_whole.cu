// Reduce kernels of the integers: four loads in flight a thread.
#include "coll/reduce/ring_body.cuh"

BRAID_EACH_INTEGER(BRAID_REDUCE_KERNEL, 1)
