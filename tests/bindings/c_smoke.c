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

static void test_rooted(braid_comm* comm, int rank) {
  static int32_t send[kRanks * kCount], recv[kRanks * kCount];
  const int root = 2;
  fill(send, rank, kRanks);
  CHECK_OK(braid_reduce(comm, send, rank == root ? recv : NULL, kCount, BRAID_INT32, BRAID_SUM, root));
  for (int i = 0; i < kCount && rank == root; ++i) CHECK(recv[i] == sum_value(0, i));
  CHECK_OK(braid_gather(comm, send, rank == root ? recv : NULL, kCount, BRAID_INT32, root));
  for (int r = 0; r < kRanks && rank == root; ++r)
    for (int i = 0; i < kCount; ++i) CHECK(recv[r * kCount + i] == value(r, 0, i));
  CHECK_OK(braid_scatter(comm, rank == root ? send : NULL, recv, kCount, BRAID_INT32, root));
  for (int i = 0; i < kCount; ++i) CHECK(recv[i] == value(root, rank, i));
  CHECK(braid_gather(comm, send, recv, kCount, BRAID_INT32, kRanks) == BRAID_INVALID_ARGUMENT);
}

static void test_uneven(braid_comm* comm, int rank) {
  static int32_t send[kRanks * kCount], recv[kRanks * kCount];
  static const size_t counts[kRanks] = {5, 0, 700, 1};
  fill(send, rank, kRanks);
  CHECK_OK(braid_all_gather_v(comm, send, recv, counts, BRAID_INT32));
  size_t at = 0;
  for (int r = 0; r < kRanks; ++r)
    for (size_t i = 0; i < counts[r]; ++i) CHECK(recv[at++] == value(r, 0, (int)i));
  CHECK_OK(braid_reduce_scatter_v(comm, send, recv, counts, BRAID_INT32, BRAID_SUM));
  at = rank > 2 ? 705 : rank > 0 ? 5 : 0;
  for (size_t i = 0; i < counts[rank]; ++i) CHECK(recv[i] == sum_value(0, (int)(at + i)));
  CHECK(braid_all_gather_v(comm, send, recv, NULL, BRAID_INT32) == BRAID_INVALID_ARGUMENT);
}

static void test_messages(braid_comm* comm, int rank) {
  static int32_t send[kCount], recv[kCount];
  const int next = (rank + 1) % kRanks, before = (rank + kRanks - 1) % kRanks;
  fill(send, rank, 1);
  CHECK_OK(braid_send_recv(comm, send, kCount, next, recv, kCount, before, BRAID_INT32));
  for (int i = 0; i < kCount; ++i) CHECK(recv[i] == value(before, 0, i));
  if (rank == 0) CHECK_OK(braid_send(comm, send, kCount, BRAID_INT32, 3));
  if (rank == 3) CHECK_OK(braid_recv(comm, recv, kCount, BRAID_INT32, 0));
  for (int i = 0; i < kCount && rank == 3; ++i) CHECK(recv[i] == value(0, 0, i));
  CHECK(braid_send(comm, send, 1, BRAID_INT32, rank) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_recv(NULL, recv, 1, BRAID_INT32, 0) == BRAID_INVALID_ARGUMENT);
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
  CHECK(braid_reduce_on(comm, send, recv, 1, BRAID_INT32, BRAID_SUM, 0, NULL) == no_gpu);
  CHECK(braid_gather_on(comm, send, recv, 1, BRAID_INT32, 0, NULL) == no_gpu);
  CHECK(braid_scatter_on(comm, send, recv, 1, BRAID_INT32, 0, NULL) == no_gpu);
  CHECK(braid_all_gather_v_on(comm, send, recv, ones, BRAID_INT32, NULL) == no_gpu);
  CHECK(braid_reduce_scatter_v_on(comm, send, recv, ones, BRAID_INT32, BRAID_SUM, NULL) == no_gpu);
  CHECK(braid_send_on(comm, send, 1, BRAID_INT32, (rank + 1) % kRanks, NULL) == no_gpu);
  CHECK(braid_recv_on(comm, recv, 1, BRAID_INT32, (rank + 1) % kRanks, NULL) == no_gpu);
  CHECK(braid_barrier_on(comm, NULL) == no_gpu);
  CHECK(braid_register(comm, send, sizeof(send)) == no_gpu);
  CHECK(braid_unregister(comm, send) == no_gpu);
  CHECK(braid_barrier_on(NULL, NULL) == BRAID_INVALID_ARGUMENT);
}

static void test_texts(braid_comm* comm, int rank) {
  CHECK(strstr(braid_health(comm), "\"ok\"") != NULL);
  CHECK(strstr(braid_links(comm, 0), "\"kind\":\"shm\"") != NULL);
  CHECK(strcmp(braid_links(comm, 1), "[]") == 0); /* no call on GPU memory was made */
  CHECK(strstr(braid_explain(comm, "all_gather", 1 << 20), "all_gather") != NULL);
  CHECK(strcmp(braid_code_name(BRAID_PEER_LOST), "peer_lost") == 0);
  CHECK(strcmp(braid_version(), "0.1.0") == 0);
  CHECK(braid_rank(NULL) == -1 && braid_size(NULL) == -1);
}

/* What a group of several has, one of one rank has too. */
static void test_alone(int rank) {
  static const char* const fields[] = {"op",           "bytes", "num_ranks", "size_class", "cell_bytes",
                                       "predicted_ns", "why",   "links"};
  braid_comm* alone = NULL;
  CHECK_OK(braid_join(&alone, 0, 1, NULL, 0, 1000));
  CHECK(braid_rank(alone) == 0 && braid_size(alone) == 1);
  const char* const plan = braid_explain(alone, "all_reduce", 1 << 20);
  for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); ++i)
    CHECK(strstr(plan, fields[i]) != NULL);
  int32_t x = 7;
  CHECK_OK(braid_all_reduce(alone, &x, &x, 1, BRAID_INT32, BRAID_SUM));
  CHECK(x == 7);
  CHECK_OK(braid_close(alone));
}

/* A second group, of the ranks the other way round, whose members say who they are. */
static void test_join(int rank) {
  const int port = atoi(getenv("SECOND_PORT"));
  braid_comm* comm = NULL;
  CHECK(braid_join(NULL, 0, 1, NULL, 0, 0) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_join(&comm, kRanks, kRanks, "127.0.0.1", port, 0) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_join(&comm, 0, kRanks, NULL, port, 0) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_join(&comm, 0, kRanks, "127.0.0.1", 70000, 0) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_join(&comm, 0, kRanks, "127.0.0.1", port, -1) == BRAID_INVALID_ARGUMENT);
  CHECK(comm == NULL);
  CHECK_OK(braid_join(&comm, kRanks - 1 - rank, kRanks, "127.0.0.1", port, 20000));
  CHECK(braid_rank(comm) == kRanks - 1 - rank && braid_size(comm) == kRanks);
  int32_t all[kRanks];
  CHECK_OK(braid_all_gather(comm, &rank, all, 1, BRAID_INT32));
  for (int r = 0; r < kRanks; ++r) CHECK(all[r] == kRanks - 1 - r);
  CHECK_OK(braid_close(comm));
}

static int run_rank(int rank) {
  braid_comm* comm = NULL;
  CHECK(braid_init(NULL) == BRAID_INVALID_ARGUMENT);
  CHECK_OK(braid_init(&comm));
  CHECK(braid_rank(comm) == rank && braid_size(comm) == kRanks);
  test_gather_and_broadcast(comm, rank);
  test_reductions(comm, rank);
  test_all_to_all(comm, rank);
  test_rooted(comm, rank);
  test_uneven(comm, rank);
  test_messages(comm, rank);
  test_join(rank);
  test_alone(rank);
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
  set_number("SECOND_PORT", free_port());
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
