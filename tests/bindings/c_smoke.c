/* The C interface end to end: four forked ranks call everything in braid.h, and make the mistakes
 * that must be answered by a code and a message. The parent exits with 0 when all ranks did. Data
 * differs in every element and rank, so that a wrong offset shows. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "braid/braid.h"

enum { kRanks = 4, kCount = 1003 };

#define CHECK(condition)                                                                \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      fprintf(stderr, "%s:%d: rank %d: %s; last error: %s\n", __FILE__, __LINE__, rank, \
              #condition, braid_last_error());                                          \
      exit(1);                                                                          \
    }                                                                                   \
  } while (0)
#define CHECK_OK(call) CHECK((call) == BRAID_OK)

static int32_t value(int from, int block, int i) { return from * 1000000 + block * 10000 + i; }

static void fill(int32_t* to, int from, int blocks) {
  for (int b = 0; b < blocks; ++b)
    for (int i = 0; i < kCount; ++i) to[b * kCount + i] = value(from, b, i);
}

/* The sum over ranks of value(r, block, i). */
static int32_t sum_value(int block, int i) { return 6 * 1000000 + kRanks * (block * 10000 + i); }

static void test_gather_and_broadcast(braid_comm* comm, int rank) {
  static int32_t send[kCount], all[kRanks * kCount];
  fill(send, rank, 1);
  CHECK_OK(braid_all_gather(comm, send, all, kCount, BRAID_INT32));
  for (int r = 0; r < kRanks; ++r)
    for (int i = 0; i < kCount; ++i) CHECK(all[r * kCount + i] == value(r, 0, i));
  CHECK_OK(braid_broadcast(comm, send, kCount, BRAID_INT32, 2));
  for (int i = 0; i < kCount; ++i) CHECK(send[i] == value(2, 0, i));
}

static void test_reductions(braid_comm* comm, int rank) {
  static int32_t send[kRanks * kCount], out[kCount];
  fill(send, rank, kRanks);
  CHECK_OK(braid_reduce_scatter(comm, send, out, kCount, BRAID_INT32, BRAID_SUM));
  for (int i = 0; i < kCount; ++i) CHECK(out[i] == sum_value(rank, i));
  CHECK_OK(braid_all_reduce(comm, send, out, kCount, BRAID_INT32, BRAID_MAX));
  for (int i = 0; i < kCount; ++i) CHECK(out[i] == value(kRanks - 1, 0, i));
  CHECK_OK(braid_all_reduce(comm, send, send, kCount, BRAID_INT32, BRAID_SUM));
  for (int i = 0; i < kCount; ++i) CHECK(send[i] == sum_value(0, i));
  CHECK(send[kCount] == value(rank, 1, 0)); /* nothing behind the buffer was touched */
}

static void test_all_to_all(braid_comm* comm, int rank) {
  static int32_t send[kRanks * kCount], recv[kRanks * kCount];
  fill(send, rank, kRanks);
  CHECK_OK(braid_all_to_all(comm, send, recv, kCount, BRAID_INT32));
  for (int r = 0; r < kRanks; ++r)
    for (int i = 0; i < kCount; ++i) CHECK(recv[r * kCount + i] == value(r, rank, i));
  /* Uneven: rank r sends j + 1 elements to rank j, so rank j gets j + 1 from everyone. */
  size_t send_counts[kRanks], recv_counts[kRanks];
  for (int j = 0; j < kRanks; ++j) {
    send_counts[j] = (size_t)j + 1;
    recv_counts[j] = (size_t)rank + 1;
  }
  const int begin = rank * (rank + 1) / 2;
  CHECK_OK(braid_all_to_all_v(comm, send, send_counts, recv, recv_counts, BRAID_INT32));
  for (int r = 0; r < kRanks; ++r)
    for (int i = 0; i <= rank; ++i) CHECK(recv[r * (rank + 1) + i] == value(r, 0, begin + i));
}

static void test_mistakes(braid_comm* comm, int rank) {
  static int32_t send[kCount], all[kRanks * kCount];
  memset(all, 0x5a, sizeof(all));
  CHECK(braid_all_gather(NULL, send, all, kCount, BRAID_INT32) == BRAID_INVALID_ARGUMENT);
  CHECK(strstr(braid_last_error(), "NULL") != NULL);
  CHECK(braid_all_gather(comm, NULL, all, kCount, BRAID_INT32) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_all_gather(comm, send, all, kCount, (braid_dtype)12345) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_all_reduce(comm, send, send, kCount, BRAID_INT32, (braid_op)-1) ==
        BRAID_INVALID_ARGUMENT);
  CHECK(braid_broadcast(comm, send, kCount, BRAID_INT32, kRanks) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_all_to_all_v(comm, send, NULL, all, NULL, BRAID_INT32) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_explain(comm, "no_such_op", 1) == NULL);
  CHECK(strstr(braid_last_error(), "no_such_op") != NULL);
  /* Ranks that disagree are told so, all of them, and nothing is written. */
  CHECK(braid_all_gather(comm, send, all, rank == 1 ? kCount - 1 : kCount, BRAID_INT32) ==
        BRAID_INVALID_ARGUMENT);
  for (size_t i = 0; i < sizeof(all); ++i) CHECK(((unsigned char*)all)[i] == 0x5a);
}

/* Where there is no GPU, or this thread has chosen none, every function on one says so. */
static void test_without_gpu(braid_comm* comm, int rank) {
  static int32_t send[kRanks], recv[kRanks];
  static const size_t ones[kRanks] = {1, 1, 1, 1};
  const braid_code no_gpu = BRAID_UNAVAILABLE;
  CHECK(braid_all_gather_on(comm, send, recv, 1, BRAID_INT32, NULL) == no_gpu);
  CHECK(strstr(braid_last_error(), "braid_all_gather_on") != NULL);
  CHECK(braid_all_reduce_on(comm, send, send, 1, BRAID_INT32, BRAID_SUM, NULL) == no_gpu);
  CHECK(braid_reduce_scatter_on(comm, send, recv, 1, BRAID_INT32, BRAID_SUM, NULL) == no_gpu);
  CHECK(braid_all_to_all_on(comm, send, recv, 1, BRAID_INT32, NULL) == no_gpu);
  CHECK(braid_all_to_all_v_on(comm, send, ones, recv, ones, BRAID_INT32, NULL) == no_gpu);
  CHECK(braid_broadcast_on(comm, send, 1, BRAID_INT32, 0, NULL) == no_gpu);
  CHECK(braid_barrier_on(comm, NULL) == no_gpu);
  CHECK(braid_register(comm, send, sizeof(send)) == no_gpu);
  CHECK(braid_unregister(comm, send) == no_gpu);
  CHECK(braid_barrier_on(NULL, NULL) == BRAID_INVALID_ARGUMENT);
}

static void test_texts(braid_comm* comm, int rank) {
  CHECK(strstr(braid_health(comm), "\"ok\"") != NULL);
  CHECK(strstr(braid_explain(comm, "all_gather", 1 << 20), "all_gather") != NULL);
  CHECK(strcmp(braid_code_name(BRAID_PEER_LOST), "peer_lost") == 0);
  CHECK(strcmp(braid_version(), "0.1.0") == 0);
  CHECK(braid_rank(NULL) == -1 && braid_size(NULL) == -1);
}

static int run_rank(int rank) {
  braid_comm* comm = NULL;
  CHECK(braid_init(NULL) == BRAID_INVALID_ARGUMENT);
  CHECK_OK(braid_init(&comm));
  CHECK(braid_rank(comm) == rank && braid_size(comm) == kRanks);
  test_gather_and_broadcast(comm, rank);
  test_reductions(comm, rank);
  test_all_to_all(comm, rank);
  test_without_gpu(comm, rank);
  test_texts(comm, rank);
  test_mistakes(comm, rank);
  CHECK_OK(braid_barrier(comm));
  CHECK_OK(braid_close(comm));
  CHECK_OK(braid_close(NULL));
  return 0;
}

/* A TCP port that nobody listens on now. */
static int free_port(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof(address);
  const int probe = socket(AF_INET, SOCK_STREAM, 0);
  if (probe < 0 || bind(probe, (struct sockaddr*)&address, sizeof(address)) != 0 ||
      getsockname(probe, (struct sockaddr*)&address, &length) != 0)
    exit(1);
  close(probe);
  return ntohs(address.sin_port);
}

static void set_number(const char* name, int number) {
  char text[16];
  snprintf(text, sizeof(text), "%d", number);
  setenv(name, text, 1);
}

static void set_environment(void) {
  set_number("MASTER_PORT", free_port());
  set_number("WORLD_SIZE", kRanks);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("BRAID_JOB_TOKEN", "the C test's token", 1);
  setenv("BRAID_TUNE", "off", 1);
  setenv("BRAID_LINKS", "shm,staged", 1);
}

int main(void) {
  pid_t ranks[kRanks];
  set_environment();
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks[rank] = fork();
    if (ranks[rank] == 0) {
      set_number("RANK", rank);
      set_number("LOCAL_RANK", rank);
      exit(run_rank(rank));
    }
  }
  int failed = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = -1;
    if (waitpid(ranks[rank], &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      fprintf(stderr, "rank %d ended with status %d\n", rank, status);
      failed = 1;
    }
  }
  return failed;
}
