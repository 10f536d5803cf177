/* One rank of the conformance program, as a process or as a thread, and what it checks with.
 *
 * Data are whole numbers that follow from rank and position, so that every result is exact and a
 * wrong offset shows. */
#ifndef BRAID_TESTS_GPU_NCCL_RANK_H_
#define BRAID_TESTS_GPU_NCCL_RANK_H_

#include <nccl.h>
#include <pthread.h>
#include <stddef.h>

#include "gpu.h"

enum { kMostRanks = 16, kMostIds = 4 };

/* What the ranks of a run have in common, in shared memory. */
typedef struct {
  pthread_barrier_t all;
  ncclUniqueId ids[kMostIds];
} Shared;

typedef struct {
  int rank, size; /* also the GPU's number */
  int is_thread;  /* other ranks are in this process */
  Shared* shared;
  Stream stream, other;
  ncclComm_t comm; /* of all ranks, in use */
  int compared, wrong;
} Rank;

/* Says what was asked and what came back, and counts it. */
int expect_result(Rank* r, const char* call, ncclResult_t want, ncclResult_t got);
#define OK(r, call) expect_result(r, #call, ncclSuccess, call)
#define ANSWERS(r, want, call) expect_result(r, #call, want, call)
void expect_true(Rank* r, const char* what, int is_true);

/* All ranks are here. */
void meet(Rank* r);
/* `num_ids` fresh ids, the same on all ranks. */
const ncclUniqueId* fresh_ids(Rank* r, int num_ids);
ncclComm_t make_comm(Rank* r);
/* Until a communicator that does not block has come to an end with what it does. */
ncclResult_t settled(ncclComm_t comm);

int value(int rank, size_t i);
/* Device memory with the values of `rank`; -1 for memory full of a number that is nobody's. */
int* device_values(int rank, size_t count);
/* want(r, i, argument) is the value at i. */
typedef int Want(const Rank* r, size_t i, long argument);
void expect_values(Rank* r, const char* what, int* device, size_t count, Want* want, long argument);
int want_sum(const Rank* r, size_t i, long ranks); /* of the ranks whose bit is set; 0: all */
int want_rank(const Rank* r, size_t i, long rank); /* what `rank` sends */

/* Calls of all operations that were taken over; -1 without braid's library. */
long num_taken(void);

#endif
