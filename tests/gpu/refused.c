/* NCCL whose ncclSend answers ncclSystemError at REFUSED_AT (from 0) on the rank REFUSED_RANK, and sends at
 * all others. Loaded in the real library's place (BRAID_NCCL_REAL); all other names are those of the real one,
 * REFUSED_REAL, which it is linked with by its path. A process that dies by SIGSEGV says where. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*Send)(const void*, size_t, int, int, void*, void*);

int ncclSend(const void* from, size_t count, int type, int peer, void* comm, void* stream) {
  static int num_sends;
  const char* const rank = getenv("RANK");
  const char* const refused = getenv("REFUSED_RANK");
  const char* const at = getenv("REFUSED_AT");
  const int is_mine = rank && refused && at && strcmp(rank, refused) == 0;
  if (num_sends++ == (is_mine ? atoi(at) : -1)) return 2;
  void* const real = dlopen(getenv("REFUSED_REAL"), RTLD_LAZY | RTLD_LOCAL);
  return ((Send)dlsym(real, "ncclSend"))(from, count, type, peer, comm, stream);
}

static void say_where(int number) {
  static const char kWords[] = "refused: SIGSEGV at\n";
  void* frames[64];
  (void)!write(2, kWords, sizeof kWords - 1);
  backtrace_symbols_fd(frames, backtrace(frames, 64), 2);
  signal(number, SIG_DFL);
  raise(number);
}

__attribute__((constructor)) static void begin(void) {
  void* frames[1];
  (void)backtrace(frames, 1); /* loads what it needs now */
  signal(SIGSEGV, say_where);
}
