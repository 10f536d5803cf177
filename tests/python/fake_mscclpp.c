// A library with NCCL's names, as MSCCL++'s is: ranks are processes, buffers are host memory, sums
// are of bfloat16. Ranks meet in a file of shared memory. FAKE_MSCCLPP=lie gives a wrong byte of a
// reduce-scatter on rank 1.
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { kSuccess = 0, kSystemError = 2, kInvalidArgument = 4, kBfloat16 = 9, kSlotBytes = 1 << 20 };

typedef struct {
  char text[128];
} Id;

typedef struct {
  int rank, num_ranks;
  struct Shared {
    atomic_int arrived, round;
    char slots[];
  }* shared;
} Comm;

int fake_number(void) {
  return 900;
}  // exported: whoever has the name first in the process is asked

int ncclGetVersion(int* version) {
  *version = fake_number();
  return kSuccess;
}

const char* ncclGetErrorString(int code) {
  return code == kInvalidArgument ? "invalid argument" : "system error";
}

int ncclGetUniqueId(Id* id) {
  snprintf(id->text, sizeof id->text, "/fake-mscclpp-%d", (int)getpid());
  return kSuccess;
}

static void meet(Comm* comm) {
  const int round = atomic_load(&comm->shared->round);
  if (atomic_fetch_add(&comm->shared->arrived, 1) + 1 == comm->num_ranks) {
    atomic_store(&comm->shared->arrived, 0);
    atomic_store(&comm->shared->round, round + 1);
  }
  while (atomic_load(&comm->shared->round) == round) sched_yield();
}

int ncclCommInitRank(Comm** made, int num_ranks, Id id, int rank) {
  const char* const off = getenv("MSCCLPP_FORCE_DISABLE_NVLS");
  if (off == NULL || strcmp(off, "1") != 0) return kInvalidArgument;
  const size_t bytes = sizeof(struct Shared) + (size_t)num_ranks * kSlotBytes;
  const int file = shm_open(id.text, O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, (off_t)bytes) != 0) return kSystemError;
  Comm* const comm = calloc(1, sizeof *comm);
  *comm = (Comm){rank, num_ranks, mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)};
  close(file);
  meet(comm);
  if (rank == 0) shm_unlink(id.text);
  *made = comm;
  return kSuccess;
}

int ncclCommDestroy(Comm* comm) {
  meet(comm);
  munmap(comm->shared, sizeof(struct Shared) + (size_t)comm->num_ranks * kSlotBytes);
  free(comm);
  return kSuccess;
}

static char* slot(Comm* comm, int rank) { return comm->shared->slots + (size_t)rank * kSlotBytes; }

static float wide(uint16_t value) {
  const uint32_t bits = (uint32_t)value << 16;
  float made;
  memcpy(&made, &bits, sizeof made);
  return made;
}

static uint16_t narrow(float value) {  // exact: the sums of the data have few bits
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)(bits >> 16);
}

// Sums elements [first, first + count) of everybody's slot.
static void add(Comm* comm, size_t first, size_t count, uint16_t* out) {
  for (size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int r = 0; r < comm->num_ranks; ++r) sum += wide(((uint16_t*)slot(comm, r))[first + i]);
    out[i] = narrow(sum);
  }
}

static int bring(Comm* comm, const void* send, size_t count, int dtype) {
  if (dtype != kBfloat16 || 2 * count > kSlotBytes) return kInvalidArgument;
  memcpy(slot(comm, comm->rank), send, 2 * count);
  meet(comm);
  return kSuccess;
}

int ncclAllGather(const void* send, void* recv, size_t count, int dtype, Comm* comm, void* stream) {
  (void)stream;
  if (bring(comm, send, count, dtype) != kSuccess) return kInvalidArgument;
  for (int r = 0; r < comm->num_ranks; ++r)
    memcpy((char*)recv + 2 * count * (size_t)r, slot(comm, r), 2 * count);
  meet(comm);
  return kSuccess;
}

int ncclAllReduce(const void* send, void* recv, size_t count, int dtype, int op, Comm* comm,
                  void* stream) {
  (void)stream;
  if (op != 0 || bring(comm, send, count, dtype) != kSuccess) return kInvalidArgument;
  add(comm, 0, count, recv);
  meet(comm);
  return kSuccess;
}

int ncclReduceScatter(const void* send, void* recv, size_t count, int dtype, int op, Comm* comm,
                      void* stream) {
  (void)stream;
  const size_t all = count * (size_t)comm->num_ranks;
  if (op != 0 || bring(comm, send, all, dtype) != kSuccess) return kInvalidArgument;
  add(comm, (size_t)comm->rank * count, count, recv);
  const char* const how = getenv("FAKE_MSCCLPP");
  if (comm->rank == 1 && how != NULL && strcmp(how, "lie") == 0) ((char*)recv)[5] ^= 1;
  meet(comm);
  return kSuccess;
}
