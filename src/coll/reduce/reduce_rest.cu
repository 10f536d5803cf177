// Reduce kernels of fp64 and fp8: fewer loads in flight, for smaller code.
#include "coll/reduce/ring_body.cuh"

BRAID_EACH_OP(BRAID_REDUCE_KERNEL, float64, Fp64, 1)
BRAID_EACH_OP(BRAID_REDUCE_KERNEL, float8_e4m3fn, E4m3, 1)
BRAID_EACH_OP(BRAID_REDUCE_KERNEL, float8_e5m2, E5m2, 1)
