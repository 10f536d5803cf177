/* What programs may ask of NCCL, asked in C: every function of nccl.h, on every GPU, each result
 * exact. tests/gpu/nccl_conformance.py asks as PyTorch does, with more types and sizes.
 *
 *   nccl_conformance [RANKS]              a process per rank (all GPUs of the machine)
 *   nccl_conformance [RANKS] --threads    a thread per rank, in one process
 *   nccl_conformance [RANKS] --one        all ranks on one thread
 *   ... --only NAME                       one section
 *
 * Runs with NCCL alone, or with braid's library in front of it (LD_PRELOAD). The exit code is 1
 * when something is wrong, and 77 with fewer than two GPUs. A rank that hangs is ended after five
 * minutes.
 *
 * Of more ranks than GPUs, which are processes, some share a GPU: to NCCL each is a host of its own
 * then. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sections.h"

typedef struct {
  const char* name;
  void (*check)(Rank*);
} Section;

static const Section kSections[] = {
    {"facts", check_facts},
    {"collectives", check_collectives},
    {"rooted", check_rooted},
    {"exchanges", check_exchanges},
    {"zero counts", check_zero_counts},
    {"refusals", check_refusals},
    {"premul", check_premul},
    {"groups", check_groups},
    {"crosswise", check_crosswise},
    {"simulation", check_simulation},
    {"graphs", check_graphs},
    {"registered", check_registered},
    {"windows", check_windows},
    {"config", check_config},
    {"split", check_split},
    {"shrink", check_shrink},
    {"finalize", check_finalize},
    {"forks", check_forks},
    {"abort", check_abort},
    {"abort in a group", check_abort_group},
    {"death", check_death},
};
enum { kNumSections = sizeof kSections / sizeof *kSections, kTimeLimit = 300, kSkipped = 77 };

typedef struct {
  Shared* shared;
  const char* only; /* NULL: all sections */
  int rank, size, is_thread;
  int wrong; /* out */
} Run;

static void* run_rank(void* argument) {
  Run* const run = argument;
  Rank r = {
      .rank = run->rank, .size = run->size, .is_thread = run->is_thread, .shared = run->shared};
  gpu_use(gpu_of(r.rank));
  r.stream = gpu_stream();
  r.other = gpu_stream();
  r.comm = make_comm(&r);
  for (int i = 0; i < kNumSections; ++i) {
    if (run->only != NULL && strcmp(run->only, kSections[i].name) != 0) continue;
    const int compared = r.compared, wrong = r.wrong;
    const long taken = num_taken(); /* -1: NCCL alone */
    if (kSections[i].check != check_death) meet(&r);
    gpu_forget();
    kSections[i].check(&r);
    if (r.rank != 0) continue;
    printf("%-12s %6d compared, %d wrong", kSections[i].name, r.compared - compared,
           r.wrong - wrong);
    if (taken >= 0) printf(", %ld calls taken over", num_taken() - taken);
    printf("\n");
    fflush(stdout);
  }
  run->wrong = r.wrong;
  return NULL;
}

static Shared* make_shared(int size) {
  Shared* const shared =
      mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_barrierattr_t between_processes;
  pthread_barrierattr_init(&between_processes);
  pthread_barrierattr_setpshared(&between_processes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->all, &between_processes, (unsigned)size);
  return shared;
}

static void be_host(int number) {
  char name[32];
  snprintf(name, sizeof name, "rank %d", number);
  setenv("NCCL_HOSTID", name, 1);
}

/* A rank that kills itself is the last section's. */
static int run_processes(int size, int num_gpus, const char* only) {
  Shared* const shared = make_shared(size);
  pid_t children[kMostRanks];
  fflush(NULL);
  for (int rank = 0; rank < size; ++rank) {
    children[rank] = fork();
    if (children[rank] != 0) continue;
    if (size > num_gpus) be_host(rank);
    Run run = {shared, only, rank, size, 0, 0};
    alarm(kTimeLimit);
    run_rank(&run);
    fflush(NULL);
    _exit(run.wrong == 0 ? 0 : 1);
  }
  int failed = 0;
  for (int rank = 0; rank < size; ++rank) {
    int code = -1;
    waitpid(children[rank], &code, 0);
    const int killed_itself = WIFSIGNALED(code) && WTERMSIG(code) == SIGKILL && rank == size - 1;
    if (code == 0 || killed_itself) continue;
    fprintf(stderr, "nccl_conformance: rank %d ended with status %d\n", rank, code);
    failed = 1;
  }
  return failed;
}

static int run_threads(int size, const char* only) {
  Shared* const shared = make_shared(size);
  Run runs[kMostRanks];
  pthread_t threads[kMostRanks];
  alarm(kTimeLimit);
  for (int rank = 0; rank < size; ++rank) {
    runs[rank] = (Run){shared, only, rank, size, 1, 0};
    pthread_create(&threads[rank], NULL, run_rank, &runs[rank]);
  }
  int wrong = 0;
  for (int rank = 0; rank < size; ++rank) {
    pthread_join(threads[rank], NULL);
    wrong += runs[rank].wrong;
  }
  return wrong != 0;
}

/* In a child: the driver does not survive a fork. */
static int count_gpus(void) {
  const pid_t child = fork();
  if (child == 0) _exit(gpu_count());
  int code = 0;
  waitpid(child, &code, 0);
  return WIFEXITED(code) ? WEXITSTATUS(code) : 0;
}

int main(int argc, char** argv) {
  int size = 0, in_threads = 0, on_one = 0;
  const char* only = NULL;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--threads") == 0)
      in_threads = 1;
    else if (strcmp(argv[i], "--one") == 0)
      on_one = 1;
    else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
      only = argv[++i];
    else if ((size = atoi(argv[i])) < 1)
      return fprintf(stderr, "nccl_conformance: '%s' is no argument of it\n", argv[i]), 2;
  }
  const int num_gpus = count_gpus();
  if (size == 0) size = num_gpus;
  const int fits = size <= num_gpus || (num_gpus > 0 && !on_one && !in_threads);
  if (!fits || size < 2 || size > kMostRanks) {
    printf("nccl_conformance: skipped: %d ranks on %d GPUs\n", size, num_gpus);
    return kSkipped;
  }
  if (on_one) return alarm(kTimeLimit), check_one_thread(size) != 0;
  return in_threads ? run_threads(size, only) : run_processes(size, num_gpus, only);
}
