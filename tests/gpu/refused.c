/* NCCL whose ncclSend answers ncclSystemError at REFUSED_AT (from 0) on the rank REFUSED_RANK, and sends at
 * all others. Loaded in the real library's place (BRAID_NCCL_REAL); all other names are those of the real one,
 * REFUSED_REAL, which it is linked with. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

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
