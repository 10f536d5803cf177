/* What the fake NCCL does with its arguments, so that a caller can know the answer. */
#ifndef BRAID_TESTS_BINDINGS_NCCL_ARGUMENTS_H_
#define BRAID_TESTS_BINDINGS_NCCL_ARGUMENTS_H_

/* As large as an ncclUniqueId, which is passed by value. */
typedef struct {
  long words[16];
} Block;

typedef long Function(long, long, long, long, long, long, Block, long, double, double);

static inline long answer_of(const char* name, long a, long b, long c, long d, long e, long f,
                             Block block, long g, double x, double y) {
  unsigned long hash = 17;
  for (; *name != 0; ++name) hash = hash * 31 + (unsigned char)*name;
  const long all[] = {a, b, c, d, e, f, g, (long)(x * 1024), (long)(y * 1024)};
  for (unsigned i = 0; i < sizeof all / sizeof *all; ++i) hash = hash * 31 + (unsigned long)all[i];
  for (unsigned i = 0; i < 16; ++i) hash = hash * 31 + (unsigned long)block.words[i];
  return (long)(hash >> 1);
}

#endif
