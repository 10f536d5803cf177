/* A C program on host memory: an all-reduce in place and an all-gather, each result checked.
 *
 *   cc examples/05_all_reduce.c -o all_reduce -I include -L build/release/bindings -lbraid \
 *      -Wl,-rpath,$PWD/build/release/bindings
 *   braid run -n 4 ./all_reduce
 */
#include <stdio.h>
#include <stdlib.h>

#include "braid/braid.h"

enum { kCount = 1000, kMostRanks = 64 };

static void check(braid_code code) {
  if (code == BRAID_OK) return;
  fprintf(stderr, "%s: %s\n", braid_code_name(code), braid_last_error());
  exit(1);
}

int main(void) {
  braid_comm* comm = NULL;
  check(braid_init(&comm)); /* RANK, WORLD_SIZE, MASTER_ADDR, ... say who this is */
  const int rank = braid_rank(comm), size = braid_size(comm);

  float sums[kCount];
  for (int i = 0; i < kCount; ++i) sums[i] = (float)(i + rank);
  check(braid_all_reduce(comm, sums, sums, kCount, BRAID_FLOAT32, BRAID_SUM));

  int32_t everyone[kMostRanks];
  const int32_t mine = 10 * rank;
  check(braid_all_gather(comm, &mine, everyone, 1, BRAID_INT32));
  check(braid_close(comm));

  int wrong = 0;
  for (int i = 0; i < kCount; ++i) wrong += sums[i] != (float)(size * i + size * (size - 1) / 2);
  for (int i = 0; i < size; ++i) wrong += everyone[i] != 10 * i;
  printf("rank %d of %d: %d wrong\n", rank, size, wrong);
  return wrong != 0;
}
