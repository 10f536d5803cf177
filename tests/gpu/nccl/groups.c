/* Groups: several calls, streams and communicators at once; and the same calls in graphs. */
#include <stddef.h>

#include "sections.h"

enum { kCount = 100003 };

/* Taken over, handed on, nested, on two streams: all of it in one group. */
void check_groups(Rank* r) {
  int *a = device_values(r->rank, kCount), *b = device_values(r->rank, kCount),
      *c = device_values(r->rank, kCount), *d = device_values(r->rank, kCount);
  OK(r, ncclGroupStart());
  OK(r, ncclReduce(a, a, kCount, ncclInt32, ncclSum, 0, r->comm, r->stream));
  OK(r, ncclGroupStart());
  OK(r, ncclAllReduce(b, b, kCount, ncclInt32, ncclSum, r->comm, r->stream));
  OK(r, ncclGroupEnd());
  OK(r, ncclAllReduce(c, c, kCount, ncclInt32, ncclSum, r->comm, r->other));
  OK(r, ncclBroadcast(d, d, kCount, ncclInt32, 0, r->comm, r->other));
  OK(r, ncclGroupEnd());
  gpu_wait(r->stream); /* which waits for the other one: streams of a group join */
  if (r->rank == 0) expect_values(r, "Reduce in a group", a, kCount, want_sum, 0);
  expect_values(r, "AllReduce in an inner group", b, kCount, want_sum, 0);
  expect_values(r, "AllReduce on another stream", c, kCount, want_sum, 0);
  expect_values(r, "Broadcast on another stream", d, kCount, want_rank, 0);
}

/* Two communicators, which even ranks meet in one group and odd ranks one after the other, each on
 * a stream of its own. Both have been used before: at a first call memory is shared, which waits
 * for kernels that run, and one of them would wait for the first call of the other communicator.
 * NCCL has the same limit. */
void check_crosswise(Rank* r) {
  const ncclComm_t first = make_comm(r), second = make_comm(r);
  int *a = device_values(r->rank, kCount), *b = device_values(r->rank, kCount);
  int* const once = device_values(r->rank, kCount);
  OK(r, ncclAllReduce(once, once, kCount, ncclInt32, ncclSum, first, r->stream));
  gpu_wait(r->stream);
  OK(r, ncclAllReduce(once, once, kCount, ncclInt32, ncclSum, second, r->stream));
  gpu_wait(r->stream);
  const int is_grouped = r->rank % 2 == 0;
  if (is_grouped) {
    OK(r, ncclGroupStart());
    OK(r, ncclAllReduce(a, a, kCount, ncclInt32, ncclSum, first, r->stream));
  }
  OK(r, ncclAllReduce(b, b, kCount, ncclInt32, ncclSum, second, r->other));
  if (is_grouped)
    OK(r, ncclGroupEnd());
  else
    OK(r, ncclAllReduce(a, a, kCount, ncclInt32, ncclSum, first, r->stream));
  gpu_wait(r->stream);
  gpu_wait(r->other);
  expect_values(r, "the first of two communicators", a, kCount, want_sum, 0);
  expect_values(r, "the second of two communicators", b, kCount, want_sum, 0);
  OK(r, ncclCommDestroy(first));
  OK(r, ncclCommDestroy(second));
}

void check_simulation(Rank* r) {
  ncclSimInfo_t simulation = NCCL_SIM_INFO_INITIALIZER;
  int* const a = device_values(r->rank, kCount);
  OK(r, ncclGroupStart());
  OK(r, ncclAllReduce(a, a, kCount, ncclInt32, ncclSum, r->comm, r->stream));
  OK(r, ncclGroupSimulateEnd(&simulation));
  gpu_wait(r->stream);
  expect_values(r, "a simulation moves nothing", a, kCount, want_rank, r->rank);
}

/* A graph's calls on one stream and eager ones on another, in an order that events make. */
void check_graphs(Rank* r) {
  enum { kRounds = 6 };
  static const size_t counts[] = {500, 60001, 6 << 20}; /* packets, direct kernels, copy engines */
  for (int c = 0; c < 3; ++c) {
    const size_t count = counts[c], bytes = count * sizeof(int);
    int* const mine = device_values(r->rank, count);
    int *replayed = device_values(-1, count), *row = device_values(-1, count * (size_t)r->size);
    OK(r, ncclAllReduce(mine, replayed, count, ncclInt32, ncclSum, r->comm, r->stream));
    gpu_wait(r->stream);
    gpu_begin_capture(r->stream);
    gpu_copy(replayed, mine, bytes, r->stream);
    OK(r, ncclAllReduce(replayed, replayed, count, ncclInt32, ncclSum, r->comm, r->stream));
    OK(r, ncclAllGather(mine, row, count, ncclInt32, r->comm, r->stream));
    expect_true(r, "the capture goes on", gpu_is_capturing(r->stream));
    const Graph graph = gpu_end_capture(r->stream);
    for (int round = 0; round < kRounds; ++round) {
      int* const eager = device_values(r->rank, count);
      gpu_launch(graph, r->stream);
      gpu_order(r->other, r->stream);
      for (int i = 0; i <= round % 3; ++i) {
        gpu_copy(eager, mine, bytes, r->other);
        OK(r, ncclAllReduce(eager, eager, count, ncclInt32, ncclSum, r->comm, r->other));
      }
      gpu_order(r->stream, r->other);
      gpu_wait(r->stream);
      expect_values(r, "an eager call between replays", eager, count, want_sum, 0);
    }
    expect_values(r, "a replayed AllReduce", replayed, count, want_sum, 0);
    gpu_drop(graph);
  }
}
