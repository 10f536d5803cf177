/* braid: dispatch of tokens to experts and combine of what they made of them (docs/moe.md).
 *
 * E experts are spread evenly over the comm's N ranks, L = E / N on each. A rank's T tokens have K
 * ids each, int64 [T, K], -1 for none. All memory is the host's, contiguous, and stays the
 * caller's; what a send half was given must stay until its receive half has returned.
 *
 * Functions return a braid_code, and braid_last_error() has the message, as in braid.h: rank,
 * argument, expected, got. All ranks make the same calls in the same order. What one rank can see
 * alone is answered before anything is sent, and the call may be made again; where ranks disagree
 * all of them get BRAID_INVALID_ARGUMENT within the deadline and the buffer goes on. One thread at a
 * time. A fork has no buffer: functions are BRAID_INVALID_ARGUMENT there, destroying and freeing touch
 * nothing of its parent's, and what answers with a number is what it was.
 */
#ifndef BRAID_MOE_H_
#define BRAID_MOE_H_

#include "braid/braid.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct braid_moe braid_moe;               /* one rank's end */
typedef struct braid_moe_sent braid_moe_sent;     /* a low-latency call between its halves */
typedef struct braid_moe_handle braid_moe_handle; /* of a normal dispatch, for its combine */

/* Collective. A window has two halves of half_bytes each; normal calls work in any that hold a row
 * of every rank, low-latency ones need braid_moe_half_bytes(). can_shrink not 0: ranks that are
 * late are given up and calls go on without them, for N times the memory. The comm must outlive
 * it. */
BRAID_API braid_code braid_moe_create(braid_comm*, uint64_t half_bytes, int can_shrink,
                                      braid_moe** moe);
/* NULL is fine. */
BRAID_API braid_code braid_moe_destroy(braid_moe*);
/* For rows of row_bytes and up to max_tokens tokens a rank, 16 experts each. */
BRAID_API uint64_t braid_moe_half_bytes(int max_tokens, uint64_t row_bytes, int num_ranks,
                                        int num_experts);
/* Tokens per rank [N], rows per expert [E], which token goes where [T, N] of 0 and 1. */
BRAID_API braid_code braid_moe_layout(const int64_t* ids, int num_tokens, int num_topk,
                                      int num_ranks, int num_experts, int32_t* per_rank,
                                      int32_t* per_expert, uint8_t* is_in_rank);

/* How rows travel in a low-latency dispatch. */
typedef enum BRAID_AS_INT {
  BRAID_MOE_AS_IT_IS = 0,
  BRAID_MOE_E4M3 = 1,            /* a float32 scale for every 128 channels */
  BRAID_MOE_E4M3_POWER_OF_2 = 2, /* scales that are powers of two */
  BRAID_MOE_E4M3_UE8M0 = 3       /* their exponents, four in an int32 */
} braid_moe_form;

typedef struct braid_moe_tokens {
  const void* x; /* [T, hidden] */
  braid_dtype dtype;
  uint64_t hidden;
  const int64_t* ids; /* [T, K] */
  int num_tokens, num_topk;
  int max_tokens; /* M, alike on all ranks, T at most */
  int num_experts;
  braid_moe_form form;
} braid_moe_tokens;

/* Rows of an expert: those of source 0 first, each source's in the order of its tokens. Of M * N
 * places the first `count` are written. */
typedef struct braid_moe_rows {
  void* x;               /* [L, M*N, hidden] */
  void* scales;          /* [L, hidden/128, M*N] float32, or [L, hidden/512, M*N] int32; or NULL */
  int32_t* count;        /* [L] */
  int32_t* src_info;     /* [L, M*N]: the token at its source */
  int32_t* slots;        /* [L, M*N]: token * K + choice, for combine */
  int64_t* layout_range; /* [L, N]: begin << 32 | count of each source */
  int64_t* wait_ns;      /* [N], added to, or NULL */
} braid_moe_rows;

/* The two halves; the second one ends `sent`, well or not, unless it is refused at once, for a NULL
 * that it needs or a `sent` of the other call: that one may be made again. Two results may be alive. */
BRAID_API braid_code braid_moe_send_dispatch(braid_moe*, const braid_moe_tokens*,
                                             braid_moe_sent** sent);
BRAID_API braid_code braid_moe_receive_dispatch(braid_moe_sent*, const braid_moe_rows*);
/* Expert rows x [L, M*N, hidden] of `dtype` back to their owners, by slots and layout_range of that
 * dispatch, whose tokens are given again, the same ids; out [T, hidden] is the sum over choices of
 * weight times row. `phase` is braid_moe_phase() of the dispatch, one of the last two. */
BRAID_API uint64_t braid_moe_phase(const braid_moe_sent*);
BRAID_API braid_code braid_moe_send_combine(braid_moe*, const braid_moe_tokens*, const void* x,
                                            braid_dtype dtype, const int32_t* slots,
                                            const int64_t* layout_range, const float* weights,
                                            uint64_t phase, braid_moe_sent** sent);
BRAID_API braid_code braid_moe_receive_combine(braid_moe_sent*, void* out, int64_t* wait_ns);

/* Normal mode: exact sizes, any number of tokens, in rounds of what a window holds. Every token goes
 * once to each rank that has one of its experts. */
typedef struct braid_moe_batch {
  const void* x;    /* [T] rows of row_bytes, a multiple of 16; of any type */
  const void* side; /* [T] rows of side_bytes that go with them, such as scales */
  uint64_t row_bytes;
  uint64_t side_bytes;  /* 0: none */
  const int64_t* ids;   /* [T, K] */
  const float* weights; /* [T, K] if has_weights is not 0, which is alike on all ranks */
  int has_weights;
  int num_tokens, num_topk, num_experts;
} braid_moe_batch;

/* What comes: rows of source 0 first, each source's in the order of its tokens. */
typedef struct braid_moe_received {
  void* x;        /* [num_rows] rows of row_bytes */
  void* side;     /* [num_rows] rows of side_bytes; NULL where there are none */
  int64_t* ids;   /* [num_rows, K]: the expert's number on this rank, -1 of others; or NULL */
  float* weights; /* [num_rows, K], 0 where the id is -1; or NULL */
  int32_t* source_token; /* [num_rows]: the token at its source; or NULL */
  int32_t num_rows;      /* room; rows beyond those that come get ids of -1 and weights of 0 */
} braid_moe_received;

/* Collective, and waits until all ranks have said what they send. `batch` and what it points to stay
 * until the dispatch is finished. The handle is the caller's to free; between the two halves no other
 * call of the buffer is taken. */
BRAID_API braid_code braid_moe_begin_dispatch(braid_moe*, const braid_moe_batch* batch,
                                              braid_moe_handle** handle);
/* Rows that come; -1: NULL is no handle. */
BRAID_API int32_t braid_moe_num_rows(const braid_moe_handle*);
/* Rows by source [N], and for each of this rank's experts [L]; either may be NULL. */
BRAID_API braid_code braid_moe_counts(const braid_moe_handle*, int32_t* rows_of,
                                      int32_t* per_expert);
BRAID_API braid_code braid_moe_finish_dispatch(braid_moe_handle*, const braid_moe_received*);
/* x [num_rows, hidden] of bfloat16, float16 or float32 back to the owners, in the order in which the
 * dispatch gave them. out [T, hidden] is the sum in rank order, in fp32, then of biases [T, hidden]
 * (NULL: none), rounded once. With weights [num_rows, K], out_weights [T, K] gets their sums; NULL on
 * all ranks, or on none: a rank without rows gives any address. sums_by_node not 0, alike on all
 * ranks: rows of one node are summed there and rounded, and one row per (token, node) crosses between
 * nodes; the result is the sum of those in the order of nodes. A handle may be combined with as often
 * as one likes. */
BRAID_API braid_code braid_moe_combine(braid_moe*, const braid_moe_handle*, const void* x,
                                       braid_dtype dtype, uint64_t hidden, const float* weights,
                                       const void* bias_0, const void* bias_1, int sums_by_node,
                                       void* out, float* out_weights);
/* NULL is fine. Of a dispatch that was not finished: gives it up. Before its buffer is destroyed. */
BRAID_API void braid_moe_free_handle(braid_moe_handle*);
/* Where all ranks share memory dispatches may take every token's row from where it was made, in place
 * of a copy to each rank: the faster of both is found by measuring, one for all ranks. Results are the
 * same. Any rank may say so; rank 0's word decides. */
BRAID_API braid_code braid_moe_set_may_gather(braid_moe*, int may_gather);

/* Ranks that are not sent to nor waited for. */
BRAID_API braid_code braid_moe_set_masked(braid_moe*, int rank, int is_masked);
BRAID_API uint64_t braid_moe_mask(const braid_moe*);

#ifdef __cplusplus
}
#endif
#endif /* BRAID_MOE_H_ */
