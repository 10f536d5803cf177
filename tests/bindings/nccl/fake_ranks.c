/* A libnccl.so.2 whose ranks are threads, or turns of one thread, and which does on the host and at
 * once what NCCL does on GPUs: for tests/gpu/nccl without any. Elements are int32, and float32
 * where the user made the reduction.
 *
 * A rank posts its calls, all of a group before it waits for any, and comes back when the others
 * have posted theirs. The last to come does the work. */
#include <nccl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMost = 16, kMostCalls = 4096 };
typedef enum {
  kReduceAll,
  kReduceTo,
  kReducePart,
  kGather,
  kTell,
  kScatter,
  kExchange,
  kSplit
} Kind;

typedef struct {
  Kind kind;
  const char* send;
  char* recv;
  size_t bytes; /* of a block */
  int root, color, key;
  float factor; /* 0: whole numbers */
  ncclComm_t* child;
} Call;

typedef struct Slot {
  int num_posted, is_done;
  Call calls[kMost];
} Slot;

typedef struct Clique {
  char name[256];
  int size, num_come;
  Slot* slots[kMostCalls];
  struct {
    const void* send;
    void* recv;
    size_t bytes;
    int num_sent, num_got;
  } mail[kMost][kMost];
  struct Clique* next;
} Clique;

struct ncclComm {
  Clique* clique;
  int rank, num_calls, num_children[1 << 3];
};

typedef struct {
  ncclComm_t comm;
  int number; /* of its slot; -1: a message */
  int peer, sends, number_of_message;
} Posted;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Clique* cliques;
static __thread int depth, num_posted;
static __thread Posted posted[256];

static Clique* clique_of(const char* name, int size) { /* under the mutex */
  for (Clique* each = cliques; each != NULL; each = each->next)
    if (strcmp(each->name, name) == 0) return each;
  Clique* const made = calloc(1, sizeof *made);
  snprintf(made->name, sizeof made->name, "%s", name);
  made->size = size;
  made->next = cliques;
  return cliques = made;
}

static ncclComm_t comm_in(Clique* clique, int rank) {
  ncclComm_t comm = calloc(1, sizeof *comm);
  comm->clique = clique;
  comm->rank = rank;
  return comm;
}

/* ---- the work of a call, when all are there ---- */

static void add(char* to, const char* from, size_t bytes, float factor) {
  for (size_t i = 0; i < bytes / 4; ++i) {
    if (factor != 0)
      ((float*)to)[i] += factor * ((const float*)from)[i];
    else
      ((int*)to)[i] += ((const int*)from)[i];
  }
}

static void split(Clique* parent, Slot* slot, int number) {
  for (int rank = 0; rank < parent->size; ++rank) {
    const Call* const mine = &slot->calls[rank];
    *mine->child = NULL;
    if (mine->color < 0) continue;
    int size = 0, place = 0;
    for (int other = 0; other < parent->size; ++other) {
      const Call* const theirs = &slot->calls[other];
      if (theirs->color != mine->color) continue;
      ++size;
      place += theirs->key < mine->key || (theirs->key == mine->key && other < rank);
    }
    char name[256];
    snprintf(name, sizeof name, "%p split %d %d", (void*)parent, number, mine->color);
    *mine->child = comm_in(clique_of(name, size), place);
  }
}

static void finish(Clique* clique, Slot* slot, int number) {
  const int size = clique->size;
  const size_t bytes = slot->calls[0].bytes, all = bytes * (size_t)size;
  const Kind kind = slot->calls[0].kind;
  if (kind == kSplit) return split(clique, slot, number);
  char *const sum = calloc(1, all + 4), *const row = malloc(all + 4);
  const size_t summed = kind == kReducePart ? all : bytes;
  for (int r = 0; r < size; ++r) {
    if (kind == kReduceAll || kind == kReduceTo || kind == kReducePart)
      add(sum, slot->calls[r].send, summed, slot->calls[r].factor);
    if (kind == kGather) memcpy(row + (size_t)r * bytes, slot->calls[r].send, bytes);
  }
  const Call* const root = &slot->calls[slot->calls[0].root < 0 ? 0 : slot->calls[0].root];
  if (kind == kTell) memcpy(row, root->send, bytes);
  if (kind == kScatter) memcpy(row, root->send, all);
  char* const exchanged = malloc(all * (size_t)size + 4);
  for (int r = 0; r < size && kind == kExchange; ++r)
    for (int from = 0; from < size; ++from)
      memcpy(exchanged + (size_t)r * all + (size_t)from * bytes,
             slot->calls[from].send + (size_t)r * bytes, bytes);
  for (int r = 0; r < size; ++r) {
    const Call* const call = &slot->calls[r];
    const size_t mine = (size_t)r * bytes;
    if (kind == kReduceAll || (kind == kReduceTo && r == call->root))
      memcpy(call->recv, sum, bytes);
    if (kind == kReducePart) memcpy(call->recv, sum + mine, bytes);
    if (kind == kGather && (call->root < 0 || call->root == r)) memcpy(call->recv, row, all);
    if (kind == kTell) memcpy(call->recv, row, bytes);
    if (kind == kScatter) memcpy(call->recv, row + mine, bytes);
    if (kind == kExchange) memcpy(call->recv, exchanged + (size_t)r * all, all);
  }
  free(sum), free(row), free(exchanged);
}

/* ---- posting and waiting ---- */

static int is_over(const Posted* p) {
  const Clique* const clique = p->comm->clique;
  if (p->number >= 0) return clique->slots[p->number]->is_done;
  return p->sends ? clique->mail[p->comm->rank][p->peer].num_got >= p->number_of_message
                  : clique->mail[p->peer][p->comm->rank].num_got >= p->number_of_message;
}

static ncclResult_t wait_for_all(void) { /* under the mutex */
  for (int i = 0; i < num_posted; ++i)
    while (!is_over(&posted[i])) pthread_cond_wait(&changed, &mutex);
  num_posted = 0;
  return ncclSuccess;
}

static ncclResult_t post(ncclComm_t comm, Call call) {
  if (comm == NULL || call.root >= comm->clique->size) return ncclInvalidArgument;
  if (call.bytes == 0 && call.kind != kSplit) return ncclSuccess;
  pthread_mutex_lock(&mutex);
  Clique* const clique = comm->clique;
  const int number = comm->num_calls++;
  if (clique->slots[number] == NULL) clique->slots[number] = calloc(1, sizeof(Slot));
  Slot* const slot = clique->slots[number];
  slot->calls[comm->rank] = call;
  if (++slot->num_posted == clique->size) {
    finish(clique, slot, number);
    slot->is_done = 1;
    pthread_cond_broadcast(&changed);
  }
  posted[num_posted++] = (Posted){comm, number, 0, 0, 0};
  if (depth == 0) wait_for_all();
  pthread_mutex_unlock(&mutex);
  return ncclSuccess;
}

/* One message of a pair at a time: a group has no more of them. */
static ncclResult_t post_message(ncclComm_t comm, int sends, const void* send, void* recv,
                                 size_t bytes, int peer) {
  pthread_mutex_lock(&mutex);
  const int from = sends ? comm->rank : peer, to = sends ? peer : comm->rank;
  __typeof__(comm->clique->mail[0][0])* const mail = &comm->clique->mail[from][to];
  if (sends) mail->send = send;
  if (!sends) mail->recv = recv;
  const int number = mail->num_got + 1;
  if (mail->send != NULL && mail->recv != NULL) {
    memcpy(mail->recv, mail->send, bytes);
    mail->send = NULL, mail->recv = NULL;
    ++mail->num_got;
    pthread_cond_broadcast(&changed);
  }
  posted[num_posted++] = (Posted){comm, -1, peer, sends, number};
  if (depth == 0) wait_for_all();
  pthread_mutex_unlock(&mutex);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) { return ++depth, ncclSuccess; }
ncclResult_t ncclGroupEnd(void) {
  if (depth == 0) return ncclInvalidUsage;
  if (--depth > 0) return ncclSuccess;
  pthread_mutex_lock(&mutex);
  wait_for_all();
  pthread_mutex_unlock(&mutex);
  return ncclSuccess;
}

/* Work is done when it is posted: a simulation is a group here. */
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* simulation) {
  (void)simulation;
  return ncclGroupEnd();
}

/* ---- NCCL's names ---- */

static float factors[64];
static int num_factors;

#define WHOLE(type) ((type) == ncclInt32 || (type) == ncclFloat32)
#define TAKE(call_kind, root_rank, op)          \
  if (!WHOLE(type)) return ncclInvalidArgument; \
  return post(comm, (Call){.kind = call_kind,   \
                           .send = send,        \
                           .recv = recv,        \
                           .bytes = 4 * count,  \
                           .root = root_rank,   \
                           .factor = (int)(op) >= 5 ? factors[(int)(op) - 5] : 0})
#define BUFFERS const void *send, void *recv, size_t count, ncclDataType_t type
#define WHERE ncclComm_t comm, cudaStream_t stream
#define UNUSED (void)stream

ncclResult_t ncclAllReduce(BUFFERS, ncclRedOp_t op, WHERE) {
  UNUSED;
  TAKE(kReduceAll, -1, op);
}
ncclResult_t ncclReduce(BUFFERS, ncclRedOp_t op, int root, WHERE) {
  UNUSED;
  TAKE(kReduceTo, root, op);
}
ncclResult_t ncclReduceScatter(BUFFERS, ncclRedOp_t op, WHERE) {
  UNUSED;
  TAKE(kReducePart, -1, op);
}
ncclResult_t ncclAllGather(BUFFERS, WHERE) {
  UNUSED;
  TAKE(kGather, -1, 0);
}
ncclResult_t ncclGather(BUFFERS, int root, WHERE) {
  UNUSED;
  TAKE(kGather, root, 0);
}
ncclResult_t ncclScatter(BUFFERS, int root, WHERE) {
  UNUSED;
  TAKE(kScatter, root, 0);
}
ncclResult_t ncclBroadcast(BUFFERS, int root, WHERE) {
  UNUSED;
  TAKE(kTell, root, 0);
}
ncclResult_t ncclAlltoAll(BUFFERS, WHERE) {
  UNUSED;
  TAKE(kExchange, -1, 0);
}
ncclResult_t ncclBcast(void* buf, size_t count, ncclDataType_t type, int root, WHERE) {
  return ncclBroadcast(buf, buf, count, type, root, comm, stream);
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, WHERE) {
  UNUSED, (void)type;
  return post_message(comm, 1, send, NULL, 4 * count, peer);
}
ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, WHERE) {
  UNUSED, (void)type;
  return post_message(comm, 0, NULL, recv, 4 * count, peer);
}
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  (void)type, (void)residence, (void)comm;
  const int number = __atomic_fetch_add(&num_factors, 1, __ATOMIC_RELAXED) % 64;
  factors[number] = *(float*)scalar;
  *op = (ncclRedOp_t)(5 + number);
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int last;
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "id %d of %p",
           __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED), (void*)&last);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  pthread_mutex_lock(&mutex);
  Clique* const clique = clique_of(id.internal, size);
  *comm = comm_in(clique, rank);
  ++clique->num_come;
  pthread_cond_broadcast(&changed);
  while (depth == 0 && clique->num_come < size) pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  (void)config;
  return ncclCommInitRank(comm, size, id, rank);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size, int rank, int num_ids,
                                      ncclUniqueId* ids, ncclConfig_t* config) {
  (void)num_ids, (void)config;
  return ncclCommInitRank(comm, size, ids[0], rank);
}
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int size, const int* devices) {
  (void)devices;
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ++depth;
  for (int rank = 0; rank < size; ++rank) ncclCommInitRank(&comms[rank], size, id, rank);
  --depth;
  return ncclSuccess;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child,
                           ncclConfig_t* config) {
  (void)config;
  return post(comm, (Call){.kind = kSplit, .root = -1, .color = color, .key = key, .child = child});
}
ncclResult_t ncclCommShrink(ncclComm_t comm, int* gone, int num_gone, ncclComm_t* child,
                            ncclConfig_t* config, int flags) {
  (void)config, (void)flags;
  char name[256];
  snprintf(name, sizeof name, "%p without %d, %d", (void*)comm->clique, gone[0],
           comm->num_children[gone[0] % 8]++);
  pthread_mutex_lock(&mutex);
  *child =
      comm_in(clique_of(name, comm->clique->size - num_gone), comm->rank - (comm->rank > gone[0]));
  pthread_mutex_unlock(&mutex);
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->clique->size;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  (void)comm;
  *error = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) { return result == 0 ? "none" : "some error"; }
const char* ncclGetLastError(ncclComm_t comm) { return comm == NULL ? "" : "none"; }
ncclResult_t ncclMemAlloc(void** memory, size_t bytes) {
  *memory = malloc(bytes);
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* memory) { return free(memory), ncclSuccess; }
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* memory, size_t bytes, void** handle) {
  (void)comm, (void)bytes;
  *handle = memory;
  return ncclSuccess;
}
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, size_t bytes, ncclWindow_t* win,
                                    int flags) {
  (void)comm, (void)bytes, (void)flags;
  *win = memory;
  return ncclSuccess;
}
void ncclResetDebugInit(void) {}

#define NOTHING(name, ...) \
  ncclResult_t nccl##name(__VA_ARGS__) { return ncclSuccess; }
#pragma GCC diagnostic ignored "-Wunused-parameter"
NOTHING(CommDeregister, const ncclComm_t comm, void* handle)
NOTHING(CommWindowDeregister, ncclComm_t comm, ncclWindow_t window)
NOTHING(RedOpDestroy, ncclRedOp_t op, ncclComm_t comm)
NOTHING(CommFinalize, ncclComm_t comm)
NOTHING(CommDestroy, ncclComm_t comm)
NOTHING(CommAbort, ncclComm_t comm)
NOTHING(CommRevoke, ncclComm_t comm, int flags)
