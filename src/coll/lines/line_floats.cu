// All-reduce and reduce-scatter of floats by lines.
#include "coll/lines/line_reduce.cuh"

BRAID_LINE_REDUCE_KERNELS(float16, Fp16)
BRAID_LINE_REDUCE_KERNELS(bfloat16, Bf16)
BRAID_LINE_REDUCE_KERNELS(float32, Fp32)
BRAID_LINE_REDUCE_KERNELS(float64, Fp64)
BRAID_LINE_REDUCE_KERNELS(float8_e4m3fn, E4m3)
BRAID_LINE_REDUCE_KERNELS(float8_e5m2, E5m2)
