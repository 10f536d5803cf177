// All-reduce and reduce-scatter of integers by lines.
#include "coll/lines/line_reduce.cuh"

BRAID_LINE_REDUCE_SIGNED_KERNELS(int8, Whole<int8_t>)
BRAID_LINE_REDUCE_KERNELS(uint8, Whole<uint8_t>)
BRAID_LINE_REDUCE_SIGNED_KERNELS(int16, Whole<int16_t>)
BRAID_LINE_REDUCE_KERNELS(uint16, Whole<uint16_t>)
BRAID_LINE_REDUCE_SIGNED_KERNELS(int32, Whole<int32_t>)
BRAID_LINE_REDUCE_KERNELS(uint32, Whole<uint32_t>)
BRAID_LINE_REDUCE_SIGNED_KERNELS(int64, Whole<int64_t>)
BRAID_LINE_REDUCE_KERNELS(uint64, Whole<uint64_t>)
