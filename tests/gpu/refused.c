/* NCCL whose ncclSend answers ncclSystemError at REFUSED_AT (from 0) on the rank REFUSED_RANK, and sends at
 * all others: loaded in the real library's place (BRAID_NCCL_REAL), behind which the real one is linked. */
#define _GNU_SOURCE
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
  return ((Send)dlsym(RTLD_NEXT, "ncclSend"))(from, count, type, peer, comm, stream);
}
