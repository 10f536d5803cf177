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
 * time.
 */
#ifndef BRAID_MOE_H_
#define BRAID_MOE_H_

#include "braid/braid.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct braid_moe braid_moe;           /* one rank's end */
typedef struct braid_moe_sent braid_moe_sent; /* a low-latency call between its halves */

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

/* The two halves; the second one ends `sent`, well or not. Two results may be alive. */
BRAID_API braid_code braid_moe_send_dispatch(braid_moe*, const braid_moe_tokens*,
                                             braid_moe_sent** sent);
BRAID_API braid_code braid_moe_receive_dispatch(braid_moe_sent*, const braid_moe_rows*);
/* Expert rows x [L, M*N, hidden] of `dtype` back to their owners, by slots and layout_range of that
 * dispatch, whose tokens are given again; out [T, hidden] is the sum over choices of weight times
 * row. `phase` is braid_moe_phase() of the dispatch. */
BRAID_API uint64_t braid_moe_phase(const braid_moe_sent*);
BRAID_API braid_code braid_moe_send_combine(braid_moe*, const braid_moe_tokens*, const void* x,
                                            braid_dtype dtype, const int32_t* slots,
                                            const int64_t* layout_range, const float* weights,
                                            uint64_t phase, braid_moe_sent** sent);
BRAID_API braid_code braid_moe_receive_combine(braid_moe_sent*, void* out, int64_t* wait_ns);

/* Ranks that are not sent to nor waited for. */
BRAID_API braid_code braid_moe_set_masked(braid_moe*, int rank, int is_masked);
BRAID_API uint64_t braid_moe_mask(const braid_moe*);

#ifdef __cplusplus
}
#endif
#endif /* BRAID_MOE_H_ */
