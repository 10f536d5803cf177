// All-gather and GEMM, and the plain GEMM.
#include "overlap/entries.cuh"
#include "overlap/gemm.cuh"

BRAID_ENTRIES(gather, kGather, ALL)
