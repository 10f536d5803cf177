/* Calls every name of NCCL that is only handed on, twice, and checks what comes back.
 *
 *   call_all linked         the names this program is linked to
 *   call_all next           what dlsym(RTLD_NEXT) finds
 *   call_all open PATH      what dlopen(PATH) has; a bare name is searched for
 *   call_all time REAL SHIM nanoseconds of one call that is handed on; 1 when the shim adds 300
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "arguments.h"

#define NAME(name)            \
  extern Function nccl##name; \
  extern Function pnccl##name;
#include "bindings/nccl/names.inc"
#undef NAME

typedef struct {
  const char* name;
  Function *linked, *linked_p;
} Entry;

static const Entry all[] = {
#define NAME(name) {#name, nccl##name, pnccl##name},
#include "bindings/nccl/names.inc"
#undef NAME
};

/* These look at their arguments, unless BRAID_NCCL=off. */
static const char* const hooked[] = {
#define HOOK(name) #name,
#include "bindings/nccl/hooks.inc"
    NULL};

static int is_hooked(const char* name) {
  const char* off = getenv("BRAID_NCCL");
  if (off != NULL && strcmp(off, "off") == 0) return 0;
  for (int i = 0; hooked[i] != NULL; ++i)
    if (strcmp(hooked[i], name) == 0) return 1;
  return 0;
}

static int check(const char* name, Function* function) {
  Block block;
  for (long i = 0; i < 16; ++i) block.words[i] = 1000 + i;
  for (long call = 0; call < 2; ++call) { /* the first one goes by another way */
    const long want = answer_of(name, call, 2, 3, 4, 5, 6, block, 7, 8.5, 9.25);
    const long got = function(call, 2, 3, 4, 5, 6, block, 7, 8.5, 9.25);
    if (got == want) continue;
    fprintf(stderr, "call_all: nccl%s, call %ld: asked for %ld, found %ld\n", name, call, want,
            got);
    return 1;
  }
  return 0;
}

static Function* find(void* library, const char* prefix, const char* name) {
  char symbol[128];
  snprintf(symbol, sizeof symbol, "%s%s", prefix, name);
  void* found = dlsym(library, symbol);
  if (found == NULL) {
    fprintf(stderr, "call_all: there is no %s\n", symbol);
    exit(1);
  }
  Function* function;
  memcpy(&function, &found, sizeof function);
  return function;
}

/* `library` NULL: the linked names. */
static int check_all(void* library) {
  int failed = 0, called = 0;
  for (unsigned i = 0; i < sizeof all / sizeof *all; ++i) {
    const char* name = all[i].name;
    if (is_hooked(name)) continue;
    failed += check(name, library ? find(library, "nccl", name) : all[i].linked);
    /* Both names lead to the real ncclX: that one is what the shim looks up. */
    failed += check(name, library ? find(library, "pnccl", name) : all[i].linked_p);
    called += 2;
  }
  printf("call_all: %d names, %d wrong\n", called, failed);
  return failed != 0;
}

static void* open_or_exit(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library != NULL) return library;
  fprintf(stderr, "call_all: %s\n", dlerror());
  exit(1);
}

/* The best of several runs: others use the machine too. */
static double time_ns(Function* function) {
  const long calls = 20 * 1000;
  const Block block = {{0}};
  double best = 1e9;
  (void)function(0, 0, 0, 0, 0, 0, block, 0, 0, 0);
  for (int run = 0; run < 20; ++run) {
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < calls; ++i) (void)function(i, 0, 0, 0, 0, 0, block, 0, 0, 0);
    clock_gettime(CLOCK_MONOTONIC, &end);
    const double ns =
        (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
    if (ns / (double)calls < best) best = ns / (double)calls;
  }
  return best;
}

/* What the shim adds to a call that it hands on, of a name it does not look at and of one it does.
 */
static int time_both(void* real, void* shim) {
  const double most_ns = 300;
  int failed = 0;
  for (int i = 0; i < 2; ++i) {
    const char* name = i == 0 ? "CommCount" : "AllReduce";
    const double direct = time_ns(find(real, "nccl", name)),
                 through = time_ns(find(shim, "nccl", name));
    printf("call_all: nccl%s: %.1f ns, %.1f ns through the shim\n", name, direct, through);
    failed += through - direct > most_ns;
  }
  printf("call_all: 2 times, %d wrong\n", failed);
  return failed;
}

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "linked") == 0) return check_all(NULL);
  if (argc == 2 && strcmp(argv[1], "next") == 0) return check_all(RTLD_NEXT);
  if (argc == 3 && strcmp(argv[1], "open") == 0) return check_all(open_or_exit(argv[2]));
  if (argc == 4 && strcmp(argv[1], "time") == 0)
    return time_both(open_or_exit(argv[2]), open_or_exit(argv[3]));
  return 2;
}
