// All-reduce and reduce-scatter of integers by lines.
#include "coll/lines/line_reduce.cuh"

BRAID_EACH_INTEGER(BRAID_LINE_REDUCE_KERNEL)
