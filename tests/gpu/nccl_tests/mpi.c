// See mpi.h. A rank finds itself in RANK and WORLD_SIZE, and the others on an abstract Unix socket
// that is named after MASTER_PORT: `braid run` and torchrun set all three. Without RANK the process
// is alone.
//
// There is one message for all calls: every rank sends what it brings to rank 0, which sends
// everybody's back in rank order. A head says which call it is and how long its blocks are, so that
// ranks that do not make the same calls are found. A socket that ends, or gives nothing for ten
// minutes, ends the program: no rank waits for one that is gone.
#include "mpi.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { kMostRanks = 64, kJoinSeconds = 60, kWaitSeconds = 600 };

typedef struct {
  char call[16];
  uint64_t block_bytes;
} Head;

static int rank = 0, num_ranks = 1;
static int sockets[kMostRanks];  // on rank 0: to every other rank; else [0]: to rank 0

static void fail(const char* what, const char* why) {
  fprintf(stderr, "mpi: rank %d: %s: %s\n", rank, what, why);
  exit(1);
}

static void send_all(int socket, const void* data, size_t bytes) {
  for (const char* at = data; bytes > 0;) {
    const ssize_t sent = send(socket, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) fail("send", strerror(errno));
    at += sent;
    bytes -= (size_t)sent;
  }
}

static void recv_all(int socket, void* data, size_t bytes) {
  for (char* at = data; bytes > 0;) {
    const ssize_t got = recv(socket, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) fail("receive", "a rank has ended");
    if (got < 0) fail("receive", strerror(errno));
    at += got;
    bytes -= (size_t)got;
  }
}

// `all` becomes everybody's `mine`, in rank order.
static void exchange(const char* call, const void* mine, size_t block_bytes, void* all) {
  Head head = {.block_bytes = block_bytes};
  snprintf(head.call, sizeof head.call, "%s", call);
  char* blocks = all;
  memmove(blocks + (size_t)rank * block_bytes, mine, block_bytes);
  if (rank != 0) {
    send_all(sockets[0], &head, sizeof head);
    send_all(sockets[0], blocks + (size_t)rank * block_bytes, block_bytes);
    recv_all(sockets[0], blocks, (size_t)num_ranks * block_bytes);
    return;
  }
  for (int from = 1; from < num_ranks; ++from) {
    Head theirs;
    recv_all(sockets[from], &theirs, sizeof theirs);
    if (memcmp(&theirs, &head, sizeof head) != 0) fail(call, "a rank makes another call");
    recv_all(sockets[from], blocks + (size_t)from * block_bytes, block_bytes);
  }
  for (int to = 1; to < num_ranks; ++to)
    send_all(sockets[to], blocks, (size_t)num_ranks * block_bytes);
}

static void* room(size_t block_bytes) {
  void* const blocks = malloc((size_t)num_ranks * block_bytes + 1);
  if (blocks == NULL) fail("memory", "there is none");
  return blocks;
}

static int number(const char* name, int otherwise) {
  const char* const text = getenv(name);
  return text == NULL ? otherwise : atoi(text);
}

static socklen_t address_of_job(struct sockaddr_un* address) {
  memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;  // sun_path[0] is 0: an abstract name, which leaves no file behind
  const int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1,
                              "mpi-stand-in-%d-%d", (int)getuid(), number("MASTER_PORT", 0));
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static int open_socket(void) {
  const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (made < 0) fail("socket", strerror(errno));
  const struct timeval join = {.tv_sec = kJoinSeconds};
  setsockopt(made, SOL_SOCKET, SO_RCVTIMEO, &join, sizeof join);  // accept() keeps it too
  return made;
}

static void wait_longer(int socket) {
  const struct timeval wait = {.tv_sec = kWaitSeconds};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
}

static void take_others(const struct sockaddr_un* address, socklen_t length) {
  const int door = open_socket();
  if (bind(door, (const struct sockaddr*)address, length) != 0) fail("bind", strerror(errno));
  if (listen(door, kMostRanks) != 0) fail("listen", strerror(errno));
  for (int i = 1; i < num_ranks; ++i) {
    const int peer = accept(door, NULL, NULL);
    if (peer < 0) fail("waiting for all ranks", strerror(errno));
    wait_longer(peer);
    int from = 0;
    recv_all(peer, &from, sizeof from);
    if (from < 1 || from >= num_ranks || sockets[from] != 0)
      fail("join", "two ranks have one number");
    sockets[from] = peer;
  }
  close(door);
}

static void find_first(const struct sockaddr_un* address, socklen_t length) {
  for (int tries = 0;; ++tries) {
    sockets[0] = open_socket();
    if (connect(sockets[0], (const struct sockaddr*)address, length) == 0) break;
    if (tries == kJoinSeconds * 100) fail("looking for rank 0", strerror(errno));
    close(sockets[0]);
    usleep(10000);
  }
  wait_longer(sockets[0]);
  send_all(sockets[0], &rank, sizeof rank);
}

int MPI_Init(int* argc, char*** argv) {
  (void)argc, (void)argv;
  rank = number("RANK", 0);
  num_ranks = number("WORLD_SIZE", 1);
  if (num_ranks < 1 || num_ranks > kMostRanks || rank < 0 || rank >= num_ranks)
    fail("MPI_Init", "RANK and WORLD_SIZE are no job of 1 to 64 ranks");
  if (num_ranks == 1) return MPI_SUCCESS;
  struct sockaddr_un address;
  const socklen_t length = address_of_job(&address);
  if (rank == 0)
    take_others(&address, length);
  else
    find_first(&address, length);
  return MPI_Barrier(MPI_COMM_WORLD);
}

int MPI_Finalize(void) {
  MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 0; i < num_ranks; ++i)
    if (sockets[i] != 0) close(sockets[i]);
  return MPI_SUCCESS;
}

int MPI_Comm_size(MPI_Comm comm, int* size) {
  (void)comm;
  *size = num_ranks;
  return MPI_SUCCESS;
}

int MPI_Comm_rank(MPI_Comm comm, int* mine) {
  (void)comm;
  *mine = rank;
  return MPI_SUCCESS;
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* split) {
  (void)key;
  int colors[kMostRanks];
  exchange("split", &color, sizeof color, colors);
  for (int i = 0; i < num_ranks; ++i)
    if (colors[i] != color) fail("MPI_Comm_split", "ranks have several colours");
  *split = comm;
  return MPI_SUCCESS;
}

int MPI_Comm_free(MPI_Comm* comm) {
  *comm = -1;
  return MPI_SUCCESS;
}

int MPI_Barrier(MPI_Comm comm) {
  (void)comm;
  char mine = 0, all[kMostRanks];
  exchange("barrier", &mine, 1, all);
  return MPI_SUCCESS;
}

static size_t size_of(MPI_Datatype type) {
  switch (type) {
    case MPI_BYTE: return 1;
    case MPI_INT: return sizeof(int);
    case MPI_LONG: return sizeof(long);
    case MPI_LONG_LONG: return sizeof(long long);
    case MPI_INT64_T: return sizeof(int64_t);
    case MPI_DOUBLE: return sizeof(double);
    default: fail("a call", "its type is none of those in mpi.h"); return 0;
  }
}

int MPI_Bcast(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  (void)comm;
  const size_t bytes = (size_t)count * size_of(type);
  char* const all = room(bytes);
  exchange("broadcast", buffer, bytes, all);
  memcpy(buffer, all + (size_t)root * bytes, bytes);
  free(all);
  return MPI_SUCCESS;
}

int MPI_Gather(const void* send, int send_count, MPI_Datatype send_type, void* recv, int recv_count,
               MPI_Datatype recv_type, int root, MPI_Comm comm) {
  (void)comm;
  const size_t bytes = (size_t)send_count * size_of(send_type);
  if (rank == root && bytes != (size_t)recv_count * size_of(recv_type))
    fail("MPI_Gather", "blocks differ in size");
  char* const all = room(bytes);
  exchange("gather", send, bytes, all);
  if (rank == root) memcpy(recv, all, (size_t)num_ranks * bytes);
  free(all);
  return MPI_SUCCESS;
}

int MPI_Allgather(const void* send, int send_count, MPI_Datatype send_type, void* recv,
                  int recv_count, MPI_Datatype recv_type, MPI_Comm comm) {
  (void)comm;
  const size_t bytes = (size_t)recv_count * size_of(recv_type);
  const int is_in_place = send == MPI_IN_PLACE;
  if (!is_in_place && bytes != (size_t)send_count * size_of(send_type))
    fail("MPI_Allgather", "blocks differ in size");
  exchange("all-gather", is_in_place ? (const char*)recv + (size_t)rank * bytes : send, bytes,
           recv);
  return MPI_SUCCESS;
}

#define COMBINE(Type)                                                                  \
  do {                                                                                 \
    const Type* const one = (const Type*)from + i;                                     \
    Type* const sum = (Type*)into + i;                                                 \
    if (op == MPI_SUM) *sum += *one;                                                   \
    if ((op == MPI_MIN && *one < *sum) || (op == MPI_MAX && *one > *sum)) *sum = *one; \
  } while (0)

static void combine(const void* from, void* into, int count, MPI_Datatype type, MPI_Op op) {
  for (int i = 0; i < count; ++i) {
    if (type == MPI_DOUBLE)
      COMBINE(double);
    else if (type == MPI_INT)
      COMBINE(int);
    else
      COMBINE(int64_t);  // all others have 64 bits
  }
}

int MPI_Allreduce(const void* send, void* recv, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm) {
  (void)comm;
  if (type == MPI_BYTE || op == MPI_OP_NULL)
    fail("MPI_Allreduce", "nothing adds bytes, or no operation was given");
  const size_t bytes = (size_t)count * size_of(type);
  char* const all = room(bytes);
  exchange("all-reduce", send == MPI_IN_PLACE ? recv : send, bytes, all);
  memcpy(recv, all, bytes);
  for (int i = 1; i < num_ranks; ++i) combine(all + (size_t)i * bytes, recv, count, type, op);
  free(all);
  return MPI_SUCCESS;
}
