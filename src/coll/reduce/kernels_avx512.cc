// The build for AVX-512 F, BW, VL and DQ; src/CMakeLists.txt gives the flags. Empty for other
// processors than x86-64.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define BRAID_REDUCE_ISA avx512
#include "coll/reduce/kernels_body.h"
#endif
