/* A libnccl.so.2 that makes communicators and writes down, on standard output, what it is asked to
 * do. All other names answer success. */
#include <stdio.h>

#define SAYS(name, ...)         \
  int nccl##name(__VA_ARGS__) { \
    printf("real %s\n", #name); \
    return 0;                   \
  }

typedef struct {
  char bytes[128];
} Id;

static int one_comm;

int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
int ncclCommInitRank(void** comm, int num_ranks, Id id, int rank) {
  printf("real CommInitRank %d of %d, id %c%c\n", rank, num_ranks, id.bytes[0], id.bytes[127]);
  *comm = &one_comm;
  return 0;
}
int ncclCommGetAsyncError(void* comm, int* error) {
  (void)comm;
  *error = 0;
  return 0;
}
int ncclCommCount(void* comm, int* count) {
  (void)comm;
  *count = 2;
  return 0;
}
int ncclCommUserRank(void* comm, int* rank) {
  (void)comm;
  *rank = 1;
  return 0;
}
int ncclCommCuDevice(void* comm, int* device) {
  (void)comm;
  *device = 5;
  return 0;
}
SAYS(CommDestroy, void* comm)
SAYS(GroupStart, void)
SAYS(GroupEnd, void)
SAYS(AllReduce, const void* send, void* recv, size_t count, int dtype, int op, void* comm,
     void* stream)
SAYS(Bcast, void* buf, size_t count, int dtype, int root, void* comm, void* stream)
SAYS(Broadcast, const void* send, void* recv, size_t count, int dtype, int root, void* comm,
     void* stream)
SAYS(Reduce, const void* send, void* recv, size_t count, int dtype, int op, int root, void* comm,
     void* stream)
