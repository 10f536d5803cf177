/* One process, one thread, a communicator's rank on every GPU: by ncclCommInitAll, and by a group
 * of ncclCommInitRank. */
#include <stdio.h>
#include <string.h>

#include "sections.h"

enum { kCount = 300007 };

static void use(Rank* ranks, int i) { gpu_use(ranks[i].rank); }

static void reduce_on_all(Rank* ranks, int size, const char* what) {
  int* data[kMostRanks];
  for (int i = 0; i < size; ++i) use(ranks, i), data[i] = device_values(i, kCount);
  use(ranks, 0);
  OK(ranks, ncclGroupStart());
  for (int i = 0; i < size; ++i)
    OK(&ranks[i],
       ncclAllReduce(data[i], data[i], kCount, ncclInt32, ncclSum, ranks[i].comm, ranks[i].stream));
  OK(ranks, ncclGroupEnd());
  expect_true(ranks, "the thread's device is as it was", gpu_current() == 0);
  for (int i = 0; i < size; ++i) {
    use(ranks, i);
    gpu_wait(ranks[i].stream);
    expect_values(&ranks[i], what, data[i], kCount, want_sum, 0);
  }
}

/* Both streams of every GPU, more than one call each, and messages that fill streams. */
static void crowd_on_all(Rank* ranks, int size) {
  enum { kCalls = 4, kLarge = 16 << 20 };
  int* data[kMostRanks][kCalls];
  for (int i = 0; i < size; ++i)
    for (int call = 0; call < kCalls; ++call)
      use(ranks, i), data[i][call] = device_values(i, call == 0 ? kLarge : kCount);
  OK(ranks, ncclGroupStart());
  for (int call = 0; call < kCalls; ++call)
    for (int i = 0; i < size; ++i)
      OK(&ranks[i],
         ncclAllReduce(data[i][call], data[i][call], call == 0 ? kLarge : kCount, ncclInt32,
                       ncclSum, ranks[i].comm, call % 2 == 0 ? ranks[i].stream : ranks[i].other));
  OK(ranks, ncclGroupEnd());
  for (int i = 0; i < size; ++i) {
    use(ranks, i);
    gpu_wait(ranks[i].stream);
    for (int call = 0; call < kCalls; ++call)
      expect_values(&ranks[i], "one of many", data[i][call], call == 0 ? kLarge : kCount, want_sum,
                    0);
  }
}

static void destroy_all(Rank* ranks, int size) {
  for (int i = 0; i < size; ++i) OK(&ranks[i], ncclCommDestroy(ranks[i].comm));
}

int check_one_thread(int size) {
  Rank ranks[kMostRanks];
  ncclComm_t comms[kMostRanks];
  ncclUniqueId id;
  memset(ranks, 0, sizeof ranks);
  for (int i = 0; i < size; ++i) {
    ranks[i].rank = i, ranks[i].size = size, ranks[i].is_thread = 1;
    use(ranks, i);
    ranks[i].stream = gpu_stream(), ranks[i].other = gpu_stream();
  }
  OK(ranks, ncclCommInitAll(comms, size, NULL));
  for (int i = 0; i < size; ++i) ranks[i].comm = comms[i];
  for (int round = 0; round < 3; ++round) reduce_on_all(ranks, size, "ncclCommInitAll");
  crowd_on_all(ranks, size);
  destroy_all(ranks, size);

  OK(ranks, ncclGetUniqueId(&id));
  OK(ranks, ncclGroupStart());
  for (int i = 0; i < size; ++i) {
    use(ranks, i);
    OK(&ranks[i], ncclCommInitRank(&ranks[i].comm, size, id, i));
  }
  OK(ranks, ncclGroupEnd());
  reduce_on_all(ranks, size, "a group of ncclCommInitRank");
  destroy_all(ranks, size);
  int compared = 0, wrong = 0;
  for (int i = 0; i < size; ++i) compared += ranks[i].compared, wrong += ranks[i].wrong;
  printf("%-12s %6d compared, %d wrong, %ld calls taken over\n", "one thread", compared, wrong,
         num_taken());
  return wrong;
}
