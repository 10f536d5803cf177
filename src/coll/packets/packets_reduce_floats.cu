// All-reduce and reduce-scatter of floats by packets.
#include "coll/packets/reduce_body.cuh"

BRAID_PACKET_REDUCE_KERNELS(float16, Fp16)
BRAID_PACKET_REDUCE_KERNELS(bfloat16, Bf16)
BRAID_PACKET_REDUCE_KERNELS(float32, Fp32)
BRAID_PACKET_REDUCE_KERNELS(float64, Fp64)
BRAID_PACKET_REDUCE_KERNELS(float8_e4m3fn, E4m3)
BRAID_PACKET_REDUCE_KERNELS(float8_e5m2, E5m2)
