/* One call at a time: what each operation gives, and what NCCL refuses. */
#include "sections.h"

static const size_t kCounts[] = {1, 1000, 262147, 5 << 20};
enum { kNumCounts = sizeof kCounts / sizeof *kCounts };

static int want_block_of(const Rank* r, size_t i, long count) { /* of all ranks' values in a row */
  (void)r;
  return value((int)(i / (size_t)count), i % (size_t)count);
}
static int want_my_sum(const Rank* r, size_t i, long count) { /* this rank's block of the sums */
  return want_sum(r, i + (size_t)r->rank * (size_t)count, 0);
}
static int want_exchanged(const Rank* r, size_t i, long count) {
  const size_t source = i / (size_t)count;
  return value((int)source, i % (size_t)count + (size_t)r->rank * (size_t)count);
}

/* What `root` has at this rank's place. Of counts below 100000. */
static int want_block_from(const Rank* r, size_t i, long root_and_count) {
  const size_t count = (size_t)root_and_count % 100000;
  return value((int)(root_and_count / 100000), i + (size_t)r->rank * count);
}

void check_collectives(Rank* r) {
  for (int c = 0; c < kNumCounts; ++c) {
    const size_t count = kCounts[c], all = count * (size_t)r->size;
    int* const one = device_values(r->rank, all);
    int *sum = device_values(-1, count), *row = device_values(-1, all),
        *part = device_values(-1, count), *sent = device_values(r->rank, count);
    OK(r, ncclAllReduce(one, sum, count, ncclInt32, ncclSum, r->comm, r->stream));
    OK(r, ncclAllGather(one, row, count, ncclInt32, r->comm, r->stream));
    OK(r, ncclReduceScatter(one, part, count, ncclInt32, ncclSum, r->comm, r->stream));
    OK(r, ncclBroadcast(sent, sent, count, ncclInt32, r->size - 1, r->comm, r->stream));
    gpu_wait(r->stream);
    expect_values(r, "AllReduce", sum, count, want_sum, 0);
    expect_values(r, "AllGather", row, all, want_block_of, (long)count);
    expect_values(r, "ReduceScatter", part, count, want_my_sum, (long)count);
    expect_values(r, "Broadcast", sent, count, want_rank, r->size - 1);
    sent = device_values(r->rank, count);
    OK(r, ncclBcast(sent, count, ncclInt32, 0, r->comm, r->stream));
    gpu_wait(r->stream);
    expect_values(r, "Bcast", sent, count, want_rank, 0);
#if NCCL_VERSION_CODE >= 22800
    int* const exchanged = device_values(-1, all);
    OK(r, ncclAlltoAll(one, exchanged, count, ncclInt32, r->comm, r->stream));
    gpu_wait(r->stream);
    expect_values(r, "AlltoAll", exchanged, all, want_exchanged, (long)count);
#endif
  }
}

void check_rooted(Rank* r) {
  for (int root = 0; root < r->size; ++root) {
    const size_t count = 1000 + (size_t)root, all = count * (size_t)r->size;
    int* const one = device_values(r->rank, all);
    int* sum = device_values(-1, count);
    OK(r, ncclReduce(one, sum, count, ncclInt32, ncclSum, root, r->comm, r->stream));
    gpu_wait(r->stream);
    if (r->rank == root) expect_values(r, "Reduce", sum, count, want_sum, 0);
#if NCCL_VERSION_CODE >= 22800
    int *row = device_values(-1, all), *part = device_values(-1, count);
    OK(r, ncclGather(one, row, count, ncclInt32, root, r->comm, r->stream));
    OK(r, ncclScatter(one, part, count, ncclInt32, root, r->comm, r->stream));
    gpu_wait(r->stream);
    if (r->rank == root) expect_values(r, "Gather", row, all, want_block_of, (long)count);
    expect_values(r, "Scatter", part, count, want_block_from, root * 100000L + (long)count);
#endif
  }
}

/* A ring, which is no all-to-all, and then what is one, in one group each. */
void check_exchanges(Rank* r) {
  const size_t count = 4099, all = count * (size_t)r->size;
  const int next = (r->rank + 1) % r->size, before = (r->rank + r->size - 1) % r->size;
  int* const one = device_values(r->rank, all);
  int *got = device_values(-1, count), *row = device_values(-1, all);
  OK(r, ncclGroupStart());
  OK(r, ncclSend(one, count, ncclInt32, next, r->comm, r->stream));
  OK(r, ncclRecv(got, count, ncclInt32, before, r->comm, r->stream));
  OK(r, ncclGroupEnd());
  OK(r, ncclGroupStart());
  for (int peer = 0; peer < r->size; ++peer) {
    OK(r, ncclSend(one + (size_t)peer * count, count, ncclInt32, peer, r->comm, r->stream));
    OK(r, ncclRecv(row + (size_t)peer * count, count, ncclInt32, peer, r->comm, r->stream));
  }
  OK(r, ncclGroupEnd());
  gpu_wait(r->stream);
  expect_values(r, "a ring of Send and Recv", got, count, want_rank, before);
  expect_values(r, "Send and Recv to and from all", row, all, want_exchanged, (long)count);
}

void check_zero_counts(Rank* r) {
  int* const one = device_values(r->rank, 1);
  OK(r, ncclAllReduce(one, one, 0, ncclInt32, ncclSum, r->comm, r->stream));
  OK(r, ncclAllGather(one, one, 0, ncclInt32, r->comm, r->stream));
  OK(r, ncclReduceScatter(one, one, 0, ncclInt32, ncclSum, r->comm, r->stream));
  OK(r, ncclBroadcast(one, one, 0, ncclInt32, 0, r->comm, r->stream));
  OK(r, ncclBcast(one, 0, ncclInt32, 0, r->comm, r->stream));
  OK(r, ncclReduce(one, one, 0, ncclInt32, ncclSum, 0, r->comm, r->stream));
#if NCCL_VERSION_CODE >= 22800
  OK(r, ncclAlltoAll(one, one, 0, ncclInt32, r->comm, r->stream));
#endif
  OK(r, ncclGroupStart());
  OK(r, ncclAllReduce(one, one, 0, ncclInt32, ncclSum, r->comm, r->stream));
  OK(r, ncclAllReduce(one, one, 1, ncclInt32, ncclSum, r->comm, r->stream));
  OK(r, ncclGroupEnd());
  OK(r, ncclGroupStart());
  OK(r, ncclGroupEnd());
  gpu_wait(r->stream);
  expect_values(r, "beside calls of nothing", one, 1, want_sum, 0);
}

/* What is refused leaves the communicator as it was. */
void check_refusals(Rank* r) {
  int* const one = device_values(r->rank, 8);
  ANSWERS(r, ncclInvalidArgument,
          ncclAllReduce(one, one, 8, (ncclDataType_t)77, ncclSum, r->comm, r->stream));
  ANSWERS(r, ncclInvalidArgument,
          ncclBroadcast(one, one, 8, ncclInt32, r->size, r->comm, r->stream));
  ANSWERS(r, ncclInvalidArgument, ncclAllReduce(one, one, 8, ncclInt32, ncclSum, NULL, r->stream));
  ANSWERS(r, ncclInvalidUsage, ncclGroupEnd());
  OK(r, ncclAllReduce(one, one, 8, ncclInt32, ncclSum, r->comm, r->stream));
  gpu_wait(r->stream);
  expect_values(r, "after refusals", one, 8, want_sum, 0);
}

/* Reductions that the user makes are NCCL's: a factor of the host, and one of the device. */
void check_premul(Rank* r) {
  for (int on_device = 0; on_device < 2; ++on_device) {
    enum { kCount = 1000 };
    float host[kCount], factor = 2;
    for (int i = 0; i < kCount; ++i) host[i] = (float)value(r->rank, (size_t)i);
    float* const data = gpu_alloc(sizeof host);
    float* const device_factor = gpu_alloc(sizeof factor);
    gpu_write(data, host, sizeof host);
    gpu_write(device_factor, &factor, sizeof factor);
    ncclRedOp_t op;
    OK(r,
       ncclRedOpCreatePreMulSum(&op, on_device ? device_factor : &factor, ncclFloat32,
                                on_device ? ncclScalarDevice : ncclScalarHostImmediate, r->comm));
    OK(r, ncclAllReduce(data, data, kCount, ncclFloat32, op, r->comm, r->stream));
    OK(r, ncclRedOpDestroy(op, r->comm));
    gpu_wait(r->stream);
    gpu_read(host, data, sizeof host);
    int num_wrong = 0;
    for (int i = 0; i < kCount; ++i) num_wrong += host[i] != 2 * (float)want_sum(r, (size_t)i, 0);
    expect_true(r, on_device ? "a factor on the device" : "a factor on the host", num_wrong == 0);
  }
}
