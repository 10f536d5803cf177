// Reduce kernels of the floats that training sums: eight loads in flight a thread.
#include "coll/reduce/ring_body.cuh"

BRAID_REDUCE_KERNELS(float16, Fp16, 4)
BRAID_REDUCE_KERNELS(bfloat16, Bf16, 4)
BRAID_REDUCE_KERNELS(float32, Fp32, 4)
