/* braid: collectives over every link of the machine at once. The C interface.
 *
 * Functions that return a braid_code return BRAID_OK or why not; braid_last_error() then has the
 * message of this thread's last failure. A braid_comm may be used by one thread at a time: while it
 * is in a function, a second one gets BRAID_INVALID_ARGUMENT and changes nothing, braid_close()
 * included. Any thread may ask at any time braid_rank(), braid_size(), braid_health(),
 * braid_links() and braid_explain(). Nobody may use a comm that braid_close() was given and did not
 * refuse. Calls that move data are collective, as are braid_init(), braid_barrier() and
 * registering, but not messages: every rank makes the same calls in the same order with the same
 * counts, dtype, op and root; a disagreement is detected and returned on all ranks as
 * BRAID_INVALID_ARGUMENT, receive buffers untouched. Every wait has a deadline (BRAID_TIMEOUT,
 * default 30 s). Counts are elements of `dtype`. Buffers are host memory; the functions whose names
 * end in _on are for GPU memory.
 */
#ifndef BRAID_BRAID_H_
#define BRAID_BRAID_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BRAID_API __attribute__((visibility("default")))

/* C may pass any int as an enum; C++ may look at it, in order to refuse it, only if the enum is an
 * int there too. */
#ifdef __cplusplus
#define BRAID_AS_INT : int
#else
#define BRAID_AS_INT
#endif

typedef enum BRAID_AS_INT {
  BRAID_OK = 0,
  BRAID_INVALID_ARGUMENT = 1,
  BRAID_UNSUPPORTED = 2,
  BRAID_UNAVAILABLE = 3,
  BRAID_EXHAUSTED = 4,
  BRAID_DRIVER = 5,
  BRAID_TIMEOUT = 6,
  BRAID_PEER_LOST = 7,
  BRAID_INTERNAL = 8,
  BRAID_CANCELLED = 9
} braid_code;

/* The numbers are NCCL's (ncclDataType_t), int16 and uint16 are braid's own. */
typedef enum BRAID_AS_INT {
  BRAID_INT8 = 0,
  BRAID_UINT8 = 1,
  BRAID_INT32 = 2,
  BRAID_UINT32 = 3,
  BRAID_INT64 = 4,
  BRAID_UINT64 = 5,
  BRAID_FLOAT16 = 6,
  BRAID_FLOAT32 = 7,
  BRAID_FLOAT64 = 8,
  BRAID_BFLOAT16 = 9,
  BRAID_FLOAT8_E4M3 = 10,
  BRAID_FLOAT8_E5M2 = 11,
  BRAID_INT16 = 64,
  BRAID_UINT16 = 65
} braid_dtype;

typedef enum BRAID_AS_INT {
  BRAID_SUM = 0,
  BRAID_PROD = 1,
  BRAID_MAX = 2,
  BRAID_MIN = 3,
  BRAID_AVG = 4
} braid_op;

typedef struct braid_comm braid_comm;

/* Joins the group that RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT describe and sets up
 * the links. */
BRAID_API braid_code braid_init(braid_comm** comm);
/* The same for programs that know who they are, such as those that MPI starts: rank 0 listens at
 * `address` on the first free port from `port` on (eight are tried), and all ranks say the same two.
 * A group of one needs neither. deadline_ms is that of every wait, this one's too; 0: BRAID_TIMEOUT.
 * All else is as the environment's BRAID_ variables say. Off loopback BRAID_JOB_TOKEN must be set,
 * the secret that the ranks share. */
BRAID_API braid_code braid_join(braid_comm** comm, int rank, int size, const char* address,
                                int port, int64_t deadline_ms);
/* Leaves, and frees the handle, whatever the code is, but for BRAID_INVALID_ARGUMENT: another thread
 * is in a call on the comm, which stays as it is. No function breaks a call off; its deadline ends it.
 * NULL is fine. Collective in spirit: ranks that still call on the comm get BRAID_PEER_LOST. */
BRAID_API braid_code braid_close(braid_comm* comm);

/* Of this process, and how many there are. -1: NULL is no comm. Any thread; costs nothing. */
BRAID_API int braid_rank(const braid_comm* comm);
BRAID_API int braid_size(const braid_comm* comm);

/* recv [size * count] gets every rank's send [count], in rank order.
 * In place: send == recv + rank * count. */
BRAID_API braid_code braid_all_gather(braid_comm*, const void* send, void* recv, size_t count,
                                      braid_dtype);
/* recv [count] gets the reduction of every rank's send [count]. In place: send == recv. */
BRAID_API braid_code braid_all_reduce(braid_comm*, const void* send, void* recv, size_t count,
                                      braid_dtype, braid_op);
/* recv [count] gets block `rank` of the reduction of send [size * count].
 * In place: recv == send + rank * count. */
BRAID_API braid_code braid_reduce_scatter(braid_comm*, const void* send, void* recv, size_t count,
                                          braid_dtype, braid_op);
/* Block j of send [size * count] goes to rank j; block i of recv comes from rank i.
 * In place: send == recv. */
BRAID_API braid_code braid_all_to_all(braid_comm*, const void* send, void* recv, size_t count,
                                      braid_dtype);
/* The same with a count per peer, send_counts [size] and recv_counts [size]; blocks lie one after
 * the other, without gaps. send_counts[j] here is recv_counts[rank] on rank j. */
BRAID_API braid_code braid_all_to_all_v(braid_comm*, const void* send, const size_t* send_counts,
                                        void* recv, const size_t* recv_counts, braid_dtype);
/* buf [count] of every rank gets root's. */
BRAID_API braid_code braid_broadcast(braid_comm*, void* buf, size_t count, braid_dtype, int root);
/* recv [sum of counts] gets rank r's send [counts[r]] for every r, in rank order; all ranks give the
 * same counts [size], 0 is fine. In place: send is its block of recv. */
BRAID_API braid_code braid_all_gather_v(braid_comm*, const void* send, void* recv,
                                        const size_t* counts, braid_dtype);
/* recv [counts[rank]] gets block `rank` of the reduction of send [sum of counts]; counts as above.
 * In place: recv is its block of send. */
BRAID_API braid_code braid_reduce_scatter_v(braid_comm*, const void* send, void* recv,
                                            const size_t* counts, braid_dtype, braid_op);
/* Root's recv [count] gets the reduction of every rank's send [count]: the same bits as an
 * all_reduce. In place: send == recv. In this and the two below the buffer that only root needs is
 * not looked at on other ranks, and may be NULL. */
BRAID_API braid_code braid_reduce(braid_comm*, const void* send, void* recv, size_t count,
                                  braid_dtype, braid_op, int root);
/* Root's recv [size * count] gets every rank's send [count], in rank order.
 * In place: send == recv + root * count. */
BRAID_API braid_code braid_gather(braid_comm*, const void* send, void* recv, size_t count,
                                  braid_dtype, int root);
/* recv [count] gets block `rank` of root's send [size * count].
 * In place: recv == send + root * count. */
BRAID_API braid_code braid_scatter(braid_comm*, const void* send, void* recv, size_t count,
                                   braid_dtype, int root);
BRAID_API braid_code braid_barrier(braid_comm*);

/* Messages between two ranks; the others take no part. The k-th send of one rank to another meets
 * that one's k-th receive from it; count and dtype must agree, or both get BRAID_INVALID_ARGUMENT
 * and nothing is written. Both return when all has arrived: two ranks that send to each other and
 * receive afterwards wait for the deadline, and use braid_send_recv(). A collective between the two
 * ends of a message is found at once, and ends the comm on all ranks. */
BRAID_API braid_code braid_send(braid_comm*, const void* data, size_t count, braid_dtype, int peer);
BRAID_API braid_code braid_recv(braid_comm*, void* data, size_t count, braid_dtype, int peer);
/* Both at once: send [send_count] to rank `to`, recv [recv_count] from rank `from`. They share no
 * byte. */
BRAID_API braid_code braid_send_recv(braid_comm*, const void* send, size_t send_count, int to,
                                     void* recv, size_t recv_count, int from, braid_dtype);

/* The same on GPU memory, enqueued on `stream`: a cudaStream_t or CUstream, NULL is the default
 * one. Memory and stream are of the calling thread's current CUDA device, one per rank and comm;
 * all GPUs are in one machine. The first such call sets the GPUs up, which takes up to seconds and
 * may not be captured in a CUDA graph; later ones may. While a capture has calls of a comm, others of
 * that comm are BRAID_INVALID_ARGUMENT (but for some small ones), and nothing else happens. Nothing
 * orders a graph's replay and other calls of its comm but the program. BRAID_OK means that the work
 * is enqueued: the result is there when the stream is. A failure that shows later (a lost peer, the
 * deadline, ranks that called different things) comes back from the next call and from
 * braid_health(); receive buffers hold anything then. BRAID_UNAVAILABLE: no driver, no current
 * device, GPUs that cannot reach each other. */
BRAID_API braid_code braid_all_gather_on(braid_comm*, const void* send, void* recv, size_t count,
                                         braid_dtype, void* stream);
BRAID_API braid_code braid_all_reduce_on(braid_comm*, const void* send, void* recv, size_t count,
                                         braid_dtype, braid_op, void* stream);
BRAID_API braid_code braid_reduce_scatter_on(braid_comm*, const void* send, void* recv,
                                             size_t count, braid_dtype, braid_op, void* stream);
BRAID_API braid_code braid_all_to_all_on(braid_comm*, const void* send, void* recv, size_t count,
                                         braid_dtype, void* stream);
/* Counts are host memory, read before the call returns. */
BRAID_API braid_code braid_all_to_all_v_on(braid_comm*, const void* send, const size_t* send_counts,
                                           void* recv, const size_t* recv_counts, braid_dtype,
                                           void* stream);
BRAID_API braid_code braid_broadcast_on(braid_comm*, void* buf, size_t count, braid_dtype, int root,
                                        void* stream);
/* gather, scatter and all_gather_v are made of all_to_all_v, reduce and reduce_scatter_v of
 * all_reduce, whose result is dropped where nobody wants it. */
BRAID_API braid_code braid_all_gather_v_on(braid_comm*, const void* send, void* recv,
                                           const size_t* counts, braid_dtype, void* stream);
BRAID_API braid_code braid_reduce_scatter_v_on(braid_comm*, const void* send, void* recv,
                                               const size_t* counts, braid_dtype, braid_op,
                                               void* stream);
BRAID_API braid_code braid_reduce_on(braid_comm*, const void* send, void* recv, size_t count,
                                     braid_dtype, braid_op, int root, void* stream);
BRAID_API braid_code braid_gather_on(braid_comm*, const void* send, void* recv, size_t count,
                                     braid_dtype, int root, void* stream);
BRAID_API braid_code braid_scatter_on(braid_comm*, const void* send, void* recv, size_t count,
                                      braid_dtype, int root, void* stream);
/* Messages of GPU memory go through pinned host memory, wait for the stream and return when all has
 * arrived; they cannot be captured. The other end may be host memory. */
BRAID_API braid_code braid_send_on(braid_comm*, const void* data, size_t count, braid_dtype,
                                   int peer, void* stream);
BRAID_API braid_code braid_recv_on(braid_comm*, void* data, size_t count, braid_dtype, int peer,
                                   void* stream);
/* Work of all ranks' streams after it starts after all ranks' before it. */
BRAID_API braid_code braid_barrier_on(braid_comm*, void* stream);

/* Shares GPU memory with all ranks: results that later lie in it, at the same offset on every rank,
 * are written there directly instead of through scratch. Collective; sizes must be equal, no
 * byte may be registered already, and a refusal is every rank's. Keep the memory until
 * braid_unregister() or braid_close().
 *
 * When the comm fails on any rank (the deadline, a lost peer, calls that differ) copies that were
 * enqueued already are not taken back: what is registered may be written to on every rank, also on
 * one that has not come to the call, until all have closed the comm or ended. Where ranks share a
 * process, free it only then. */
BRAID_API braid_code braid_register(braid_comm*, void* memory, size_t bytes);
/* Takes that back. Collective; waits for the comm's GPU work; where calls were captured since, for all
 * of the GPU's, and is BRAID_INVALID_ARGUMENT while a stream is being captured. */
BRAID_API braid_code braid_unregister(braid_comm*, void* memory);

/* JSON texts, valid until this thread's next call of the same function on this comm, or
 * braid_close(); NULL when that failed (braid_last_error() says why), as for an op that is none.
 * What holds now; it waits for nobody: {ok, rank, size, why, links [{name, state, paced,
 * down_count, resent_pieces, why}], events}, and "gpu" once a call on GPU memory was made. */
BRAID_API const char* braid_health(braid_comm*);
/* What bytes can travel over: of host memory (on_gpu 0), in order of preference, or of this rank's GPU,
 * once a call on GPU memory was made: [{name, kind, rate_gbps, latency_ns, source, can_multicast}],
 * of a GPU with state ("up", "off") and how. */
BRAID_API const char* braid_links(braid_comm*, int on_gpu);
/* The plan of the next such call on host memory, once a call that is under way has ended: {op,
 * bytes, num_ranks, size_class, cell_bytes, predicted_ns, why, links [{name, kind, share, fraction,
 * bytes, rate_gbps, latency_ns, can_multicast, source, shares_with}]}, shares of 65536. bytes as
 * nccl-tests counts them: the buffer for all_reduce and broadcast, the sum over ranks for the
 * others. */
BRAID_API const char* braid_explain(braid_comm*, const char* op, uint64_t bytes);

/* "peer_lost" for a code; the message of this thread's last failed call, "" before any. Never NULL.
 */
BRAID_API const char* braid_code_name(braid_code);
BRAID_API const char* braid_last_error(void);
/* "0.1.0" */
BRAID_API const char* braid_version(void);

#ifdef __cplusplus
}
#endif
#endif /* BRAID_BRAID_H_ */
