// Every call of mpi.h on as many ranks as there are, with data that depend on the place and the
// rank. With an argument some rank does what it may not: "leave" ends rank 1 at once, "stray" makes
// it call something else than the others, "split" has it ask for another colour.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpi.h"

enum { kMost = 64, kCount = 5 };

static int rank, num_ranks, num_wrong;

static void expect(int is_right, const char* what) {
  if (is_right) return;
  printf("rank %d: %s is wrong\n", rank, what);
  ++num_wrong;
}

static long cell(int from, int i) { return 1000L * from + 7 * i + 3; }

static void gathers(void) {
  long mine[kCount], all[kMost * kCount];
  memset(all, -1, sizeof all);
  for (int i = 0; i < kCount; ++i) mine[i] = cell(rank, i);
  const int root = num_ranks - 1;
  MPI_Gather(mine, kCount, MPI_LONG, all, kCount, MPI_LONG, root, MPI_COMM_WORLD);
  for (int i = 0; i < num_ranks * kCount; ++i)
    expect(all[i] == (rank == root ? cell(i / kCount, i % kCount) : -1), "gather");
  memset(all, -1, sizeof all);
  memcpy(all + rank * kCount, mine, sizeof mine);
  MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, (int)sizeof mine, MPI_BYTE,
                MPI_COMM_WORLD);
  for (int i = 0; i < num_ranks * kCount; ++i)
    expect(all[i] == cell(i / kCount, i % kCount), "all-gather");
  MPI_Bcast(mine, kCount, MPI_LONG, root, MPI_COMM_WORLD);
  for (int i = 0; i < kCount; ++i) expect(mine[i] == cell(root, i), "broadcast");
}

static void sums(void) {
  double value[2] = {rank + 0.5, -rank};
  MPI_Allreduce(MPI_IN_PLACE, value, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  expect(value[0] == num_ranks * num_ranks / 2.0, "sum of doubles");
  expect(value[1] == -num_ranks * (num_ranks - 1) / 2.0, "second sum of doubles");
  const int mine = rank * rank - 3 * rank;  // least at 1 and 2
  int least = 0;
  MPI_Allreduce(&mine, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  expect(least == (num_ranks > 1 ? -2 : 0), "least");
  int64_t most = (int64_t)rank << 40;
  MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
  expect(most == (int64_t)(num_ranks - 1) << 40, "most");
  long long many = 1LL << 33;
  MPI_Allreduce(MPI_IN_PLACE, &many, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
  expect(many == (long long)num_ranks << 33, "sum of long longs");
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
  const char* const how = argc > 1 ? argv[1] : "";
  if (rank == 1 && strcmp(how, "leave") == 0) exit(3);
  if (rank == 1 && strcmp(how, "stray") == 0)
    MPI_Allreduce(MPI_IN_PLACE, &num_wrong, 1, MPI_INT, MPI_SUM, 0);
  MPI_Comm all;
  MPI_Comm_split(MPI_COMM_WORLD, rank == 1 && strcmp(how, "split") == 0, rank, &all);
  for (int i = 0; i < 200; ++i) {
    MPI_Barrier(all);
    gathers();
    sums();
  }
  MPI_Comm_free(&all);
  MPI_Finalize();
  if (num_wrong == 0) printf("rank %d of %d: all right\n", rank, num_ranks);
  return num_wrong != 0;
}
