/* A program that uses NCCL as programs do; the script `taking_over` looks at what became of it. */
#include <stdio.h>
#include <string.h>

typedef struct {
  char bytes[128];
} Id;

int ncclGetVersion(int* version);
int ncclCommInitRank(void** comm, int num_ranks, Id id, int rank);
int ncclCommDestroy(void* comm);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclAllReduce(const void*, void*, size_t, int dtype, int op, void* comm, void* stream);
int pncclAllReduce(const void*, void*, size_t, int dtype, int op, void* comm, void* stream);
int ncclBcast(void*, size_t, int dtype, int root, void* comm, void* stream);
int ncclReduce(const void*, void*, size_t, int dtype, int op, int root, void* comm, void* stream);

int main(void) {
  Id id;
  int version = 0, failed = 0;
  void* comm = NULL;
  float buffer[8];
  memset(&id, 'x', sizeof id);
  id.bytes[127] = 'z';
  failed += ncclGetVersion(&version);
  printf("version %d\n", version);
  failed += ncclCommInitRank(&comm, 2, id, 1);
  failed += ncclAllReduce(buffer, buffer, 8, 7, 0, comm, NULL);
  failed += pncclAllReduce(buffer, buffer, 7, 7, 0, comm, NULL);
  failed += ncclReduce(buffer, buffer, 8, 7, 0, 0, comm, NULL);
  failed += ncclGroupStart();
  failed += ncclBcast(buffer, 6, 9, 1, comm, NULL);
  failed += ncclAllReduce(buffer, buffer, 0, 7, 0, comm, NULL);
  failed += ncclGroupEnd();
  failed += ncclCommDestroy(comm);
  return failed;
}
