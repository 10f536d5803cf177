// GEMM and all-reduce of few rows: every rank gets all parts and adds them itself. Small tiles, for
// few rows make few of them, and every one has the sum to do, which needs registers.
#include "overlap/entries.cuh"
#include "overlap/gemm.cuh"

BRAID_ENTRIES(exchange, kExchange, SMALL)
