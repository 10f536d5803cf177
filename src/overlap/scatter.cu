// GEMM and reduce-scatter; with more outputs than one, GEMM and all-reduce.
#include "overlap/entries.cuh"
#include "overlap/gemm.cuh"

BRAID_ENTRIES(scatter, kScatter, ALL)
