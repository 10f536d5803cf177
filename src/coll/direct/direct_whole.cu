// All-reduce and reduce-scatter of integers by direct kernels.
#include "coll/direct/direct_reduce.cuh"

BRAID_EACH_INTEGER(BRAID_DIRECT_REDUCE_KERNEL, 1)
