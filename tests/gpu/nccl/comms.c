/* Communicators: how they are made, what they say, what they leave to others, how they end. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sections.h"

enum { kCount = 70001 };

/* Blocking or not: the call is under way, or done. */
static void expect_begun(Rank* r, const char* what, ncclResult_t result) {
  expect_true(r, what, result == ncclSuccess || result == ncclInProgress);
}

static void reduce_on(Rank* r, const char* what, ncclComm_t comm, long ranks) {
  int* const one = device_values(r->rank, kCount);
  expect_begun(r, what, ncclAllReduce(one, one, kCount, ncclInt32, ncclSum, comm, r->stream));
  ANSWERS(r, ncclSuccess, settled(comm));
  gpu_wait(r->stream);
  expect_values(r, what, one, kCount, want_sum, ranks);
}

void check_facts(Rank* r) {
  int version = 0, count = -1, rank = -1, device = -1;
  ncclResult_t state = ncclInternalError;
  OK(r, ncclGetVersion(&version));
  expect_true(r, "the version is a real one", version >= 22000 && version < 40000);
  OK(r, ncclCommCount(r->comm, &count));
  OK(r, ncclCommUserRank(r->comm, &rank));
  OK(r, ncclCommCuDevice(r->comm, &device));
  OK(r, ncclCommGetAsyncError(r->comm, &state));
  expect_true(r, "count, rank and device",
              count == r->size && rank == r->rank && device == gpu_of(r->rank));
  expect_true(r, "no asynchronous error", state == ncclSuccess);
  expect_true(
      r, "texts",
      strlen(ncclGetErrorString(ncclInvalidUsage)) > 0 && ncclGetLastError(r->comm) != NULL);
  expect_true(r, "the thread's device is as it was", gpu_current() == gpu_of(r->rank));
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  ncclResetDebugInit();
#pragma GCC diagnostic pop
}

/* By a config that does not block, and by several ids. */
void check_config(Rank* r) {
  ncclComm_t comm = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  expect_begun(r, "ncclCommInitRankConfig",
               ncclCommInitRankConfig(&comm, r->size, fresh_ids(r, 1)[0], r->rank, &config));
  ANSWERS(r, ncclSuccess, settled(comm));
  reduce_on(r, "a communicator that does not block", comm, 0);
  expect_begun(r, "ncclCommFinalize", ncclCommFinalize(comm));
  ANSWERS(r, ncclSuccess, settled(comm));
  expect_begun(r, "ncclCommDestroy", ncclCommDestroy(comm));

  ncclUniqueId ids[2];
  memcpy(ids, fresh_ids(r, 2), sizeof ids);
  OK(r, ncclCommInitRankScalable(&comm, r->size, r->rank, 2, ids, NULL));
  reduce_on(r, "a communicator of two ids", comm, 0);
  OK(r, ncclCommDestroy(comm));
}

void check_split(Rank* r) {
  long evens = 0, odds = 0, members = 0;
  for (int rank = 0; rank < r->size; ++rank) *(rank % 2 == 0 ? &evens : &odds) |= 1L << rank;
  ncclComm_t child = NULL, none = NULL, whole = NULL;
  OK(r, ncclCommSplit(r->comm, r->rank % 2, r->rank, &child, NULL));
  members = r->rank % 2 == 0 ? evens : odds;
  reduce_on(r, "a half", child, members);
  OK(r, ncclCommSplit(r->comm, r->rank == 0 ? NCCL_SPLIT_NOCOLOR : 3, -r->rank, &none, NULL));
  expect_true(r, "no colour, no child", (none == NULL) == (r->rank == 0));
  if (none != NULL) reduce_on(r, "all but rank 0", none, (evens | odds) & ~1L);
  OK(r, ncclCommSplit(r->comm, 3, r->rank, &whole, NULL));
  reduce_on(r, "a colour that is used again", whole, 0);
  const ncclComm_t children[] = {child, none, whole};
  for (int i = 0; i < 3; ++i)
    if (children[i] != NULL) OK(r, ncclCommDestroy(children[i]));
}

/* Twice without the highest rank: two communicators of the same ranks. */
void check_shrink(Rank* r) {
#if NCCL_VERSION_CODE >= 22700
  const ncclComm_t parent = make_comm(r);
  reduce_on(r, "before a shrink", parent, 0);
  int gone = r->size - 1;
  if (r->rank != gone) {
    for (int round = 0; round < 3; ++round) {
      ncclComm_t child = NULL;
      const int flags = round == 2 ? NCCL_SHRINK_ABORT : NCCL_SHRINK_DEFAULT;
      OK(r, ncclCommShrink(parent, &gone, 1, &child, NULL, flags));
      reduce_on(r, "after a shrink", child, (1L << gone) - 1);
      OK(r, ncclCommDestroy(child));
    }
  }
  meet(r);
  OK(r, ncclCommAbort(parent));
#else
  (void)r;
#endif
}

void check_finalize(Rank* r) {
  const ncclComm_t comm = make_comm(r);
  int* const one = device_values(r->rank, kCount);
  OK(r, ncclAllReduce(one, one, kCount, ncclInt32, ncclSum, comm, r->stream));
  OK(r, ncclCommFinalize(comm)); /* with work under way */
  gpu_wait(r->stream);
  expect_values(r, "work of a communicator that is finalized", one, kCount, want_sum, 0);
  OK(r, ncclCommDestroy(comm));
#if NCCL_VERSION_CODE >= 22807
  int version = 0; /* of the library that is there, which may be older than the header */
  OK(r, ncclGetVersion(&version));
  if (version < 22807) return;
  const ncclComm_t revoked = make_comm(r);
  reduce_on(r, "before a revocation", revoked, 0);
  expect_begun(r, "ncclCommRevoke", ncclCommRevoke(revoked, NCCL_REVOKE_DEFAULT));
  meet(r);
  OK(r, ncclCommAbort(revoked));
#endif
}

static double seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The highest rank never calls: the others' work waits until they abort. Of two communicators in a
 * group, the work of the one that is named first lies behind the other's. */
static void abort_waiting(Rank* r, int num_comms) {
  ncclComm_t comms[2];
  for (int i = 0; i < num_comms; ++i) {
    comms[i] = make_comm(r);
    reduce_on(r, "before an abort", comms[i], 0);
  }
  int* const one = device_values(r->rank, kCount);
  if (r->rank != r->size - 1) {
    for (int i = num_comms - 1; i >= 0; --i)
      OK(r, ncclAllReduce(one, one, kCount, ncclInt32, ncclSum, comms[i], r->stream));
    usleep(300 * 1000);
    expect_true(r, "work waits for a rank", !gpu_is_done(r->stream));
  } else {
    usleep(600 * 1000);
  }
  const double began = seconds_now();
  if (num_comms > 1) OK(r, ncclGroupStart());
  for (int i = 0; i < num_comms; ++i) OK(r, ncclCommAbort(comms[i]));
  if (num_comms > 1) OK(r, ncclGroupEnd());
  gpu_wait(r->stream);
  expect_true(r, "an abort ends it in seconds", seconds_now() - began < 10);
  meet(r); /* the last of a process to abort frees what all had there, which waits for kernels */
  reduce_on(r, "other communicators after an abort", r->comm, 0);
}

void check_abort(Rank* r) { abort_waiting(r, 1); }
void check_abort_group(Rank* r) { abort_waiting(r, 2); }

/* A child of a process with communicators: it may ask, and ends as it likes. */
void check_forks(Rank* r) {
  if (r->is_thread) return;
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    int version = 0;
    ncclResult_t state = ncclSuccess;
    alarm(20);
    const int is_good = ncclGetVersion(&version) == ncclSuccess &&
                        ncclGroupStart() == ncclSuccess && ncclGroupEnd() == ncclSuccess &&
                        ncclCommGetAsyncError(r->comm, &state) == ncclSuccess &&
                        ncclGetLastError(r->comm) != NULL;
    _exit(is_good ? 0 : 1);
  }
  int code = -1;
  expect_true(r, "a forked child", waitpid(child, &code, 0) == child && code == 0);
  reduce_on(r, "after a fork", r->comm, 0);
}

/* Watchdogs hear of a rank that is killed, when braid has the communicator: NCCL alone sees nothing
 * inside a node. */
void check_death(Rank* r) {
  if (r->is_thread || num_taken() <= 0) return;
  const ncclComm_t comm = make_comm(r);
  reduce_on(r, "before a death", comm, 0);
  meet(r);
  if (r->rank == r->size - 1) {
    usleep(200 * 1000);
    kill(getpid(), SIGKILL);
  }
  int* const one = device_values(r->rank, kCount);
  (void)ncclAllReduce(one, one, kCount, ncclInt32, ncclSum, comm, r->stream);
  ncclResult_t state = ncclSuccess;
  const double began = seconds_now();
  while (state == ncclSuccess && seconds_now() - began < 10) {
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) break;
    usleep(1000);
  }
  expect_true(r, "a death is an asynchronous error in seconds", state == ncclRemoteError);
  OK(r, ncclCommAbort(comm));
}
