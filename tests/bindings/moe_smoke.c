/* Dispatch and combine as a C program sees them: two ranks, which are processes, and what is refused.
 * Expert e multiplies by e + 1, in whole numbers, so that every sum is exact. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "braid/moe.h"

enum { N = 2, E = 4, K = 2, L = E / N, M = 8, H = 8 };

#define CHECK(what)                                                                     \
  do {                                                                                  \
    if (!(what)) {                                                                      \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, braid_last_error()); \
      return 1;                                                                         \
    }                                                                                   \
  } while (0)

static const int64_t kIds[N][3 * K] = {{0, 1, 2, -1, 1, 3}, {3, 2, 0, 3, -1, -1}};
static const float kWeights[N][3 * K] = {{.5f, .5f, 1, 0, .25f, .75f}, {.5f, .5f, .5f, .5f, 0, 0}};
static const float kFactors[N][3] = {{1.5f, 3, 3.5f}, {3.5f, 2.5f, 0}};

static int exchange(braid_moe* moe, int rank) {
  float x[3][H], out[3][H];
  for (int t = 0; t < 3; ++t)
    for (int h = 0; h < H; ++h) x[t][h] = (float)(8 * rank + 2 * t + h);
  braid_moe_tokens tokens = {x, BRAID_FLOAT32, H, kIds[rank], 3, K, M, E, BRAID_MOE_AS_IT_IS};
  static float rows[L][M * N][H];
  static int32_t count[L], src_info[L][M * N], slots[L][M * N];
  static int64_t layout_range[L][N];
  braid_moe_rows to = {rows,           NULL, count, &src_info[0][0], &slots[0][0], &layout_range[0][0],
                       NULL};
  braid_moe_sent* sent = NULL;
  CHECK(braid_moe_send_dispatch(moe, &tokens, &sent) == BRAID_OK);
  const uint64_t phase = braid_moe_phase(sent);
  CHECK(braid_moe_receive_dispatch(sent, &to) == BRAID_OK);
  CHECK(count[0] == 2 && count[1] == (rank == 0 ? 2 : 3));
  for (int e = 0; e < L; ++e)
    for (int i = 0; i < count[e]; ++i)
      for (int h = 0; h < H; ++h) rows[e][i][h] *= (float)(rank * L + e + 1);
  CHECK(braid_moe_send_combine(moe, &tokens, rows, BRAID_FLOAT32, &slots[0][0], &layout_range[0][0],
                               kWeights[rank], phase, &sent) == BRAID_OK);
  CHECK(braid_moe_receive_combine(sent, out, NULL) == BRAID_OK);
  for (int t = 0; t < 3; ++t)
    for (int h = 0; h < H; ++h) CHECK(out[t][h] == kFactors[rank][t] * x[t][h]);
  return 0;
}

static int refusals(braid_moe* moe) {
  braid_moe_sent* sent = NULL;
  int64_t high[K] = {0, E};
  float x[H] = {0};
  braid_moe_tokens tokens = {x, BRAID_FLOAT32, H, high, 1, K, M, E, BRAID_MOE_AS_IT_IS};
  CHECK(braid_moe_send_dispatch(moe, &tokens, &sent) == BRAID_INVALID_ARGUMENT);
  CHECK(strstr(braid_last_error(), "expected -1 to 3, got 4") != NULL && sent == NULL);
  tokens.form = (braid_moe_form)9;
  CHECK(braid_moe_send_dispatch(moe, &tokens, &sent) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_moe_send_dispatch(NULL, &tokens, &sent) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_moe_receive_dispatch(NULL, NULL) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_moe_set_masked(moe, 7, 1) == BRAID_INVALID_ARGUMENT && braid_moe_mask(moe) == 0);
  int32_t per_rank[N], per_expert[E];
  uint8_t is_in[3 * N];
  CHECK(braid_moe_layout(kIds[0], 3, K, N, E, per_rank, per_expert, is_in) == BRAID_OK);
  CHECK(per_rank[0] == 2 && per_rank[1] == 2 && per_expert[1] == 2 && !is_in[1] && is_in[3]);
  CHECK(braid_moe_layout(high, 1, K, N, E, per_rank, per_expert, is_in) == BRAID_INVALID_ARGUMENT);
  return braid_moe_destroy(NULL) == BRAID_OK ? 0 : 1;
}

static int run_rank(int rank, int port) {
  braid_comm* comm = NULL;
  braid_moe* moe = NULL;
  CHECK(braid_join(&comm, rank, N, "127.0.0.1", port, 20000) == BRAID_OK);
  CHECK(braid_moe_create(comm, braid_moe_half_bytes(M, 4 * H, N, E), 0, &moe) == BRAID_OK);
  for (int repeat = 0; repeat < 5; ++repeat)
    if (exchange(moe, rank) != 0) return 1;
  if (refusals(moe) != 0 || exchange(moe, rank) != 0) return 1;
  CHECK(braid_barrier(comm) == BRAID_OK);
  CHECK(braid_moe_destroy(moe) == BRAID_OK);
  CHECK(braid_close(comm) == BRAID_OK);
  return 0;
}

int main(void) {
  setenv("BRAID_TUNE", "off", 1);
  const int port = 20000 + 8 * (int)(getpid() % 1500);
  pid_t children[N];
  for (int rank = 0; rank < N; ++rank) {
    children[rank] = fork();
    if (children[rank] == 0) _exit(run_rank(rank, port));
  }
  int failed = 0;
  for (int rank = 0; rank < N; ++rank) {
    int status = 0;
    if (waitpid(children[rank], &status, 0) < 0 || status != 0) failed = 1;
  }
  if (!failed) printf("dispatch and combine from C: exact\n");
  return failed;
}
