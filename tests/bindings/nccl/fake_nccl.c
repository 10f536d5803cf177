/* A library with NCCL's names whose functions prove what reached them: the answer depends on the
 * name and on every argument, in registers, on the stack and by value. */
#include "arguments.h"

#define NAME(name)                                                                                \
  long nccl##name(long a, long b, long c, long d, long e, long f, Block block, long g, double x,  \
                  double y) {                                                                     \
    return answer_of(#name, a, b, c, d, e, f, block, g, x, y);                                    \
  }                                                                                               \
  long pnccl##name(long a, long b, long c, long d, long e, long f, Block block, long g, double x, \
                   double y) {                                                                    \
    return 1 + answer_of(#name, a, b, c, d, e, f, block, g, x, y);                                \
  }
#include "bindings/nccl/names.inc"
