// All-reduce and reduce-scatter of floats by direct kernels: as many loads in flight as the reduce
// kernels have.
#include "coll/direct/direct_reduce.cuh"

BRAID_EACH_OP(BRAID_DIRECT_REDUCE_KERNEL, float16, Fp16, 3)
BRAID_EACH_OP(BRAID_DIRECT_REDUCE_KERNEL, bfloat16, Bf16, 3)
BRAID_EACH_OP(BRAID_DIRECT_REDUCE_KERNEL, float32, Fp32, 4)
BRAID_EACH_OP(BRAID_DIRECT_REDUCE_KERNEL, float64, Fp64, 1)
BRAID_EACH_OP(BRAID_DIRECT_REDUCE_KERNEL, float8_e4m3fn, E4m3, 1)
BRAID_EACH_OP(BRAID_DIRECT_REDUCE_KERNEL, float8_e5m2, E5m2, 1)
