// Reduce kernels of the floats that training sums: eight loads in flight a thread.
#include "coll/reduce/ring_body.cuh"

BRAID_EACH_OP(BRAID_REDUCE_KERNEL, float16, Fp16, 4)
BRAID_EACH_OP(BRAID_REDUCE_KERNEL, bfloat16, Bf16, 4)
BRAID_EACH_OP(BRAID_REDUCE_KERNEL, float32, Fp32, 4)
