/* A program of somebody else's: two ranks add two arrays, and every element is looked at. */
#include <braid/braid.h>
#include <stdio.h>

enum { kCount = 100000 };
static float values[kCount];

int main(void) {
  braid_comm* comm = NULL;
  if (braid_init(&comm) != BRAID_OK) {
    fprintf(stderr, "%s\n", braid_last_error());
    return 1;
  }
  const int rank = braid_rank(comm), size = braid_size(comm);
  for (int i = 0; i < kCount; ++i) values[i] = (float)(i % 1000 + 1000 * rank);
  int wrong = 0;
  if (braid_all_reduce(comm, values, values, kCount, BRAID_FLOAT32, BRAID_SUM) != BRAID_OK) {
    fprintf(stderr, "%s\n", braid_last_error());
    wrong = 1;
  }
  for (int i = 0; i < kCount; ++i)
    wrong += values[i] != (float)(size * (i % 1000) + 1000 * (size * (size - 1) / 2));
  braid_close(comm);
  if (wrong == 0) printf("rank %d of %d: right\n", rank, size);
  return wrong != 0;
}
