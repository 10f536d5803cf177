// The build for any machine: what the compiler may use without flags (SSE2 on x86-64).
#define BRAID_REDUCE_ISA generic
#include "coll/reduce/kernels_body.h"
