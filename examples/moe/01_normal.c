/* Dispatch and combine of a layer of experts, from C, in host memory: every rank has some tokens, an
 * expert multiplies by its number, and what comes back is checked.
 *
 *   cc -std=c99 01_normal.c -o normal $(pkg-config --cflags --libs braid)
 *   braid run -n 4 ./normal          (or any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR, ...)
 */
#include <stdio.h>
#include <stdlib.h>

#include "braid/moe.h"

enum { kExpertsPerRank = 2, kTopk = 2, kHidden = 64, kTokens = 100 };

#define TRY(call)                                             \
  do {                                                        \
    if ((call) != BRAID_OK) {                                 \
      fprintf(stderr, "%s: %s\n", #call, braid_last_error()); \
      exit(1);                                                \
    }                                                         \
  } while (0)

static float x[kTokens][kHidden], out[kTokens][kHidden], weights[kTokens][kTopk];
static int64_t ids[kTokens][kTopk];

/* What the experts of this rank make of the rows that came: each row's experts, weighted. */
static void compute(int rank, float* rows, const int64_t* local, const float* weight,
                    int num_rows) {
  for (int i = 0; i < num_rows; ++i) {
    float factor = 0;
    for (int k = 0; k < kTopk; ++k)
      if (local[i * kTopk + k] >= 0)
        factor +=
            weight[i * kTopk + k] * (float)(rank * kExpertsPerRank + (int)local[i * kTopk + k] + 1);
    for (int h = 0; h < kHidden; ++h) rows[i * kHidden + h] *= factor;
  }
}

static void exchange(braid_moe* moe, int rank, int num_experts) {
  braid_moe_batch batch = {0};
  batch.x = x;
  batch.row_bytes = sizeof x[0];
  batch.ids = ids[0];
  batch.weights = weights[0];
  batch.has_weights = 1;
  batch.num_tokens = kTokens;
  batch.num_topk = kTopk;
  batch.num_experts = num_experts;
  braid_moe_handle* handle = NULL;
  TRY(braid_moe_begin_dispatch(moe, &batch, &handle));
  const int num_rows = braid_moe_num_rows(handle); /* known now, so that memory can be made */
  const size_t room = num_rows > 0 ? (size_t)num_rows : 1;
  float* rows = malloc(room * sizeof x[0]);
  int64_t* local = malloc(room * sizeof ids[0]);
  float* weight = malloc(room * sizeof weights[0]);
  if (rows == NULL || local == NULL || weight == NULL) exit(1);
  braid_moe_received received = {0};
  received.x = rows;
  received.ids = local;
  received.weights = weight;
  received.num_rows = num_rows;
  TRY(braid_moe_finish_dispatch(handle, &received));
  compute(rank, rows, local, weight, num_rows);
  TRY(braid_moe_combine(moe, handle, rows, BRAID_FLOAT32, kHidden, NULL, NULL, NULL, 0, out, NULL));
  braid_moe_free_handle(handle);
  free(rows);
  free(local);
  free(weight);
}

int main(void) {
  braid_comm* comm = NULL;
  braid_moe* moe = NULL;
  TRY(braid_init(&comm));
  const int rank = braid_rank(comm), num_experts = kExpertsPerRank * braid_size(comm);
  TRY(braid_moe_create(comm, 1 << 20, 0, &moe));
  for (int t = 0; t < kTokens; ++t) {
    for (int h = 0; h < kHidden; ++h) x[t][h] = (float)((t + h + rank) % 32);
    for (int k = 0; k < kTopk; ++k) {
      ids[t][k] = (t * 7 + rank + k * 3) % num_experts;
      weights[t][k] = 0.5f;
    }
  }
  exchange(moe, rank, num_experts);
  int wrong = 0;
  for (int t = 0; t < kTokens; ++t) {
    const float factor = 0.5f * (float)(ids[t][0] + 1) + 0.5f * (float)(ids[t][1] + 1);
    for (int h = 0; h < kHidden; ++h) wrong += out[t][h] != factor * x[t][h];
  }
  printf("rank %d: %d tokens there and back, %d elements wrong\n", rank, kTokens, wrong);
  TRY(braid_barrier(comm));
  TRY(braid_moe_destroy(moe));
  TRY(braid_close(comm));
  return wrong != 0;
}
