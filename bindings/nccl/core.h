/* What libbraid-nccl.so asks of libbraid-nccl-core.so, which it opens when a communicator may be
 * taken over. C types only: the two are linked to different C++ runtimes. Tests bring a table of
 * their own.
 *
 * Functions return 0 or a braid_code (braid/braid.h) and then put words into `why`, ended by a
 * zero. A seat is one rank's part of one communicator. Threads: one at a time per seat; status(),
 * interrupt() and close() also by any other.
 */
#ifndef BRAID_BINDINGS_NCCL_CORE_H_
#define BRAID_BINDINGS_NCCL_CORE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BRAID_NCCL_CORE_VERSION 8u
#define BRAID_NCCL_MOST_RANKS 16       /* of one host; more are never taken over */
#define BRAID_NCCL_MOST_NODE_RANKS 256 /* of several hosts */

typedef enum {
  BRAID_NCCL_ALL_REDUCE,
  BRAID_NCCL_ALL_GATHER,
  BRAID_NCCL_REDUCE_SCATTER,
  BRAID_NCCL_BROADCAST,
  BRAID_NCCL_ALL_TO_ALL,
  BRAID_NCCL_NUM_OPS
} braid_nccl_op;

typedef struct {
  int op;
  int dtype; /* braid_dtype, also NCCL's */
  int redop; /* braid_op, also NCCL's */
  int root;
  uint64_t count; /* as the NCCL function of the same name counts */
  const void* send;
  void* recv;
  void* stream; /* CUstream */
} braid_nccl_call;

typedef struct {
  char* text;
  size_t bytes;
} braid_nccl_why;

/* What open() answers, where it is not 0. */
#define BRAID_NCCL_TAKEN 1
#define BRAID_NCCL_HAS_SHARP 2  /* beside it: NCCL may sum in the switches of this machine */
#define BRAID_NCCL_OVER_NODES 4 /* beside it: all_gather and reduce_scatter alone */
#define BRAID_NCCL_LATER 8      /* alone: nothing is decided before one of these two is called */
#define BRAID_NCCL_LOST 16      /* alone: what the ranks decided is not known here, `why` tells */

/* Of one operation: bit i is of the size kRacedBytes[i] (choice.h). */
typedef struct {
  uint32_t measured; /* both were timed */
  uint32_t won;      /* and braid was enough faster */
} braid_nccl_choice;

/* The real communicator, to be timed. */
typedef struct {
  void* context;
  int version;     /* as ncclGetVersion tells it */
  uint64_t config; /* differs where what it was asked for differs; the same on all ranks */
  /* Enqueues a call on its stream; an ncclResult_t, which is 0 when that is done. */
  int (*run)(void* context, const braid_nccl_call*);
  /* What calls in symmetric windows need; ncclResult_ts. Memory for windows on the current device, which is
   * no matter of the communicator: it may be given back when that is gone. */
  int (*take_memory)(void* context, uint64_t bytes, void** memory);
  int (*give_memory_back)(void* context, void* memory);
  /* Collective: such memory as a window, NULL where the library has no use for one. Not 0: nothing was
   * made; but ncclInProgress: it may yet be. */
  int (*open_window)(void* context, void* memory, uint64_t bytes, void** window);
  /* Of this rank alone. */
  int (*close_window)(void* context, void* window);
} braid_nccl_real;

/* What a rank sends to one node and receives from one, at the same time; bytes. */
typedef struct {
  const void* send;
  uint64_t send_bytes;
  int to;
  void* recv;
  uint64_t recv_bytes;
  int from;
} braid_nccl_passage;

/* The real library, for communicators of the core's own between nodes. Functions return an
 * ncclResult_t, and what they enqueue has been enqueued when it is 0. Of exchange() and all_gather()
 * it may be ncclInProgress: they are over when error() says something else. Threads: any. */
typedef struct {
  void* context;
  int version; /* as ncclGetVersion tells it */
  int (*make_id)(void* context, char* id /* 128 bytes */);
  /* On the calling thread's device. Waits for the other ranks. */
  int (*make)(void* context, const char* id, int num_ranks, int rank, void** comm);
  int (*exchange)(void* context, void* comm, const braid_nccl_passage*, void* stream);
  int (*all_gather)(void* context, void* comm, const void* send, void* recv, uint64_t bytes,
                    void* stream);
  int (*error)(void* context, void* comm); /* ncclCommGetAsyncError's */
  int (*abort)(void* context, void* comm);
  int (*destroy)(void* context, void* comm);
} braid_nccl_rails;

/* Who asks to be set up, and at which operation. */
typedef struct {
  int rank, num_ranks, device;
  int op;
  const braid_nccl_rails* rails; /* as long as the process lives */
} braid_nccl_place;

typedef struct braid_nccl_seat braid_nccl_seat;

typedef struct {
  uint32_t version;

  /* Into an id that the real library has just made: where a roll over nodes is served, so that the
   * ranks of its communicators find each other. Not 0: the id is as it was. */
  int (*mark)(char* id /* 128 bytes */, braid_nccl_why why);
  /* Signs the roll of the communicator that `key` names, for a caller that decides by `settings`, a
   * number for all of them, which must be every rank's. Before NCCL's init. NULL: not to be taken
   * over, `why` tells. */
  braid_nccl_seat* (*sign)(const void* key, size_t key_bytes, uint64_t settings,
                           braid_nccl_why why);
  /* NCCL's init has succeeded on this rank: all that ever sign have signed. */
  void (*seal)(braid_nccl_seat*);
  /* Collective: sets the communicator up, or agrees with all ranks not to (0). */
  int (*open)(braid_nccl_seat*, const braid_nccl_place*, braid_nccl_why why);
  /* Collective, on a seat that is open, and while no rank has anything else to do with the real
   * communicator: which of the two is faster in `op`, in small messages or in large ones (choice.h),
   * for which memory is taken where braid is; in symmetric windows, or in memory that nobody
   * registered. Without a real one: nobody is asked, and all is won that there is memory for. Every
   * rank has the same answer. Not 0: the seat is of no use any longer, on any rank, and the real
   * communicator may have work left that does not end. */
  int (*race)(braid_nccl_seat*, int op, int is_large, int in_windows, const braid_nccl_real*,
              braid_nccl_choice*, braid_nccl_why why);
  /* Enqueues a call on its stream. */
  int (*run)(braid_nccl_seat*, const braid_nccl_call*, braid_nccl_why why);
  /* Collective, on a seat that is open: results of calls land in place in this memory, in which all
   * ranks use the same offsets. Every rank has the same answer. NULL: gone on this rank, so that it
   * is used on none. */
  int (*add_window)(braid_nccl_seat*, void* memory, uint64_t bytes, braid_nccl_why why);
  /* Results land there no longer, and the memory may be freed, on this rank. Waits for nothing. */
  int (*drop_window)(braid_nccl_seat*, void* memory, braid_nccl_why why);
  /* Work enqueued from now on any of the streams, all of the seat's GPU, starts after what is on
   * all of them now; of those that are captured, on those of the same graph. */
  int (*join)(braid_nccl_seat*, void* const* streams, size_t num_streams, braid_nccl_why why);
  /* Of a stream that is used with a communicator of `device`; makes no context. */
  int (*is_capturing)(int device, void* stream);
  /* Trouble that showed after a call was enqueued. */
  int (*status)(braid_nccl_seat*, braid_nccl_why why);
  /* Makes the work of this rank's part give up, also an open() that another thread is in, and waits
   * for nothing on the GPU. Later calls fail. Twice is fine. */
  void (*interrupt)(braid_nccl_seat*);
  /* Ends this rank's part: waits for its work and, shortly, for the other ranks (in peace), or
   * interrupts it and waits for what lies before it on its streams. Twice is fine. */
  void (*close)(braid_nccl_seat*, int is_in_peace);
  /* The last use of a seat. Closes what is open. */
  void (*release)(braid_nccl_seat*);
} braid_nccl_core;

/* What libbraid-nccl-core.so exports, as braid_nccl_core_table. */
typedef const braid_nccl_core* braid_nccl_core_function(void);

#ifdef __cplusplus
}
#endif
#endif /* BRAID_BINDINGS_NCCL_CORE_H_ */
