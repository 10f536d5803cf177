/* Memory that NCCL allocates, and memory that is registered with it. */
#include "sections.h"

enum { kBytes = 4 << 20, kCount = kBytes / sizeof(int) };

static void reduce_in(Rank* r, const char* what, int* memory) {
  int* const mine = device_values(r->rank, kCount);
  gpu_copy(memory, mine, kBytes, r->stream);
  OK(r, ncclAllReduce(memory, memory, kCount, ncclInt32, ncclSum, r->comm, r->stream));
  gpu_copy(mine, memory, kBytes, r->stream);
  gpu_wait(r->stream);
  expect_values(r, what, mine, kCount, want_sum, 0);
}

void check_registered(Rank* r) {
  void *allocated = NULL, *handle = NULL;
  OK(r, ncclMemAlloc(&allocated, kBytes));
  reduce_in(r, "memory of ncclMemAlloc", allocated);
  OK(r, ncclCommRegister(r->comm, allocated, kBytes, &handle));
  reduce_in(r, "registered memory", allocated);
  OK(r, ncclCommDeregister(r->comm, handle));
  reduce_in(r, "memory that was registered", allocated);
  OK(r, ncclMemFree(allocated));
}

void check_windows(Rank* r) {
  void* allocated = NULL;
  ncclWindow_t window = NULL;
  OK(r, ncclMemAlloc(&allocated, kBytes));
  OK(r, ncclCommWindowRegister(r->comm, allocated, kBytes, &window, NCCL_WIN_COLL_SYMMETRIC));
  reduce_in(r, "a symmetric window", allocated);
  OK(r, ncclCommWindowDeregister(r->comm, window));
  OK(r, ncclMemFree(allocated));
}
