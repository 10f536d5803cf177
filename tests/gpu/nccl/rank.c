#define _GNU_SOURCE
#include "rank.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int expect_result(Rank* r, const char* call, ncclResult_t want, ncclResult_t got) {
  ++r->compared;
  if (got == want) return 1;
  ++r->wrong;
  fprintf(stderr, "rank %d: %s: asked for %d, found %d (%s; %s)\n", r->rank, call, want, got,
          ncclGetErrorString(got), ncclGetLastError(r->comm));
  return 0;
}

void expect_true(Rank* r, const char* what, int is_true) {
  ++r->compared;
  if (is_true) return;
  ++r->wrong;
  fprintf(stderr, "rank %d: %s: no\n", r->rank, what);
}

void meet(Rank* r) { pthread_barrier_wait(&r->shared->all); }

const ncclUniqueId* fresh_ids(Rank* r, int num_ids) {
  meet(r); /* nobody reads the last ones any more */
  for (int i = 0; i < num_ids && r->rank == 0; ++i) OK(r, ncclGetUniqueId(&r->shared->ids[i]));
  meet(r);
  return r->shared->ids;
}

ncclComm_t make_comm(Rank* r) {
  ncclComm_t comm = NULL;
  OK(r, ncclCommInitRank(&comm, r->size, fresh_ids(r, 1)[0], r->rank));
  return comm;
}

ncclResult_t settled(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  for (int i = 0; i < 60 * 1000 && state == ncclInProgress; ++i) {
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
    if (asked != ncclSuccess) return asked;
    usleep(1000);
  }
  return state;
}

int value(int rank, size_t i) { return (int)((i * 7 + (size_t)rank * 31 + i / 1024) % 997); }

int* device_values(int rank, size_t count) {
  int* const host = malloc((count + 1) * sizeof *host);
  for (size_t i = 0; i < count; ++i) host[i] = rank < 0 ? -5000 : value(rank, i);
  int* const device = gpu_alloc((count + 1) * sizeof *device);
  gpu_write(device, host, (count + 1) * sizeof *host);
  free(host);
  return device;
}

void expect_values(Rank* r, const char* what, int* device, size_t count, Want* want,
                   long argument) {
  int* const host = malloc((count + 1) * sizeof *host);
  gpu_read(host, device, (count + 1) * sizeof *host);
  size_t num_wrong = 0, first = 0;
  for (size_t i = count; i-- > 0;)
    if (host[i] != want(r, i, argument)) {
      ++num_wrong;
      first = i;
    }
  ++r->compared;
  if (num_wrong > 0) {
    ++r->wrong;
    fprintf(stderr, "rank %d: %s: %zu of %zu wrong, first %zu: %d for %d\n", r->rank, what,
            num_wrong, count, first, host[first], want(r, first, argument));
  }
  free(host);
}

int want_sum(const Rank* r, size_t i, long ranks) {
  int sum = 0;
  for (int rank = 0; rank < r->size; ++rank)
    if (ranks == 0 || (ranks >> rank & 1) != 0) sum += value(rank, i);
  return sum;
}

int want_rank(const Rank* r, size_t i, long rank) {
  (void)r;
  return value((int)rank, i);
}

long num_taken(void) {
  enum { kRoom = 16 };
  size_t (*counts)(uint64_t*, uint64_t*, size_t) = NULL;
  void* const found = dlsym(RTLD_DEFAULT, "braid_nccl_counts");
  memcpy(&counts, &found, sizeof counts);
  if (counts == NULL) return -1;
  uint64_t taken[kRoom] = {0}, handed_on[kRoom] = {0};
  const size_t num = counts(taken, handed_on, kRoom);
  long sum = 0;
  for (size_t i = 0; i < num && i < kRoom; ++i) sum += (long)taken[i];
  return sum;
}
