// The build for AVX2 and F16C; src/CMakeLists.txt gives the flags. Empty for other processors than
// x86-64.
#if defined(__AVX2__) && defined(__F16C__)
#define BRAID_REDUCE_ISA avx2
#include "coll/reduce/kernels_body.h"
#endif
