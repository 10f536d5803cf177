/* Dispatch and combine as a C program sees them: two ranks, which are processes, on one host and on two,
 * and what is refused.
 * Expert e multiplies by e + 1, in whole numbers, so that every sum is exact. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "braid/moe.h"

enum { N = 2, E = 4, K = 2, L = E / N, M = 8, H = 8 };

#define CHECK(what)                                                                      \
  do {                                                                                   \
    if (!(what)) {                                                                       \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, braid_last_error()); \
      return 1;                                                                          \
    }                                                                                    \
  } while (0)

static const int64_t kIds[N][3 * K] = {{0, 1, 2, -1, 1, 3}, {3, 2, 0, 3, -1, -1}};
static const float kWeights[N][3 * K] = {{.5f, .5f, 1, 0, .25f, .75f}, {.5f, .5f, .5f, .5f, 0, 0}};
static const float kFactors[N][3] = {{1.5f, 3, 3.5f}, {3.5f, 2.5f, 0}};

/* A combine of other ids, or of another shape, than the dispatch's is refused before anything is sent. */
static int not_of_the_dispatch(braid_moe* moe, const braid_moe_tokens* tokens, const void* rows,
                               const int32_t* slots, const int64_t* layout_range,
                               const float* weights, uint64_t phase) {
  int64_t ids[3 * K];
  braid_moe_tokens other = *tokens;
  braid_moe_sent* sent = NULL;
  other.ids = ids;
  static const struct {
    int64_t id;
    const char* words;
  } kWrong[] = {{2, "expected the ids of the dispatch"},
                {-2, "expected -1 to 3, got -2"},
                {E, "expected -1 to 3, got 4"},
                {(int64_t)1 << 28, "expected -1 to 3, got 268435456"}};
  for (size_t i = 0; i < sizeof kWrong / sizeof kWrong[0]; ++i) {
    memcpy(ids, tokens->ids, sizeof ids);
    ids[0] = kWrong[i].id == ids[0] ? 1 : kWrong[i].id;
    CHECK(braid_moe_send_combine(moe, &other, rows, BRAID_FLOAT32, slots, layout_range, weights,
                                 phase, &sent) == BRAID_INVALID_ARGUMENT);
    CHECK(strstr(braid_last_error(), kWrong[i].words) != NULL && sent == NULL);
  }
  other = *tokens;
  other.max_tokens = M + 1;
  CHECK(braid_moe_send_combine(moe, &other, rows, BRAID_FLOAT32, slots, layout_range, weights,
                               phase, &sent) == BRAID_INVALID_ARGUMENT);
  CHECK(strstr(braid_last_error(), "max_tokens: expected 8, as of the dispatch, got 9") != NULL);
  other = *tokens;
  other.num_experts = 2 * E;
  CHECK(braid_moe_send_combine(moe, &other, rows, BRAID_FLOAT32, slots, layout_range, weights,
                               phase, &sent) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_moe_send_combine(moe, tokens, rows, BRAID_FLOAT32, slots, layout_range, weights,
                               phase + 1, &sent) == BRAID_INVALID_ARGUMENT);
  CHECK(strstr(braid_last_error(), "phase: expected that of one of the last 2") != NULL);
  return 0;
}

/* What a parent's handle is in its fork: refused, and freed without a trace. The windows are memory that
 * the parent goes on with; what it has begun it ends as if nobody had forked. */
static int in_a_fork(braid_comm* comm, braid_moe* moe, braid_moe_sent* sent,
                     braid_moe_handle* handle) {
  static int64_t room[L * M * N * H];
  const int64_t ids[K] = {0, 1};
  const float weights[K] = {1, 1};
  braid_moe_tokens tokens = {room, BRAID_FLOAT32, H, ids, 1, K, M, E, BRAID_MOE_AS_IT_IS};
  braid_moe_rows rows = {room, NULL, (int32_t*)room, (int32_t*)room, (int32_t*)room, room, NULL};
  braid_moe_batch batch = {room, NULL, 4 * H, 0, ids, NULL, 0, 1, K, E};
  braid_moe_received received = {room, room, room, (float*)room, (int32_t*)room, M * N};
  braid_moe* other = NULL;
  braid_moe_sent* other_sent = NULL;
  braid_moe_handle* other_handle = NULL;
#define CHECK_REFUSED(call)                                                                    \
  do {                                                                                         \
    CHECK(call == BRAID_INVALID_ARGUMENT);                                                     \
    CHECK(strstr(braid_last_error(), "by process") && strstr(braid_last_error(), "its fork")); \
  } while (0)
  CHECK_REFUSED(braid_moe_create(comm, 1 << 16, 0, &other));
  CHECK_REFUSED(braid_moe_set_masked(moe, 0, 1));
  CHECK_REFUSED(braid_moe_set_may_gather(moe, 0));
  CHECK_REFUSED(braid_moe_send_dispatch(moe, &tokens, &other_sent));
  CHECK(strstr(braid_last_error(), "braid_moe_send_dispatch: the buffer was made by process"));
  CHECK_REFUSED(braid_moe_send_combine(moe, &tokens, room, BRAID_FLOAT32, (int32_t*)room, room,
                                       weights, 1, &other_sent));
  CHECK_REFUSED(braid_moe_begin_dispatch(moe, &batch, &other_handle));
  CHECK(other == NULL && other_sent == NULL && other_handle == NULL);
  if (sent != NULL) {
    CHECK_REFUSED(braid_moe_receive_dispatch(sent, &rows));
    CHECK_REFUSED(braid_moe_receive_combine(sent, room, NULL));
  }
  if (handle != NULL) {
    CHECK_REFUSED(braid_moe_counts(handle, NULL, NULL));
    CHECK_REFUSED(braid_moe_finish_dispatch(handle, &received));
    CHECK_REFUSED(
        braid_moe_combine(moe, handle, room, BRAID_FLOAT32, H, NULL, NULL, NULL, 0, room, NULL));
  }
  CHECK(braid_moe_mask(moe) == 0);
  CHECK(sent == NULL || braid_moe_phase(sent) != 0);
  CHECK(handle == NULL || braid_moe_num_rows(handle) > 0);
  CHECK(braid_moe_destroy(moe) == BRAID_OK);
  braid_moe_free_handle(handle); /* before its buffer or after it */
  CHECK(braid_close(comm) == BRAID_OK);
  return 0;
}

static int look_in_a_fork(braid_comm* comm, braid_moe* moe, braid_moe_sent* sent,
                          braid_moe_handle* handle) {
  int status = 1;
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(20);
    _exit(in_a_fork(comm, moe, sent, handle));
  }
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  return 0;
}

static int exchange(braid_comm* comm, braid_moe* moe, int rank) {
  float x[3][H], out[3][H];
  for (int t = 0; t < 3; ++t)
    for (int h = 0; h < H; ++h) x[t][h] = (float)(8 * rank + 2 * t + h);
  braid_moe_tokens tokens = {x, BRAID_FLOAT32, H, kIds[rank], 3, K, M, E, BRAID_MOE_AS_IT_IS};
  static float rows[L][M * N][H];
  static int32_t count[L], src_info[L][M * N], slots[L][M * N];
  static int64_t layout_range[L][N];
  braid_moe_rows to = {rows, NULL, count, &src_info[0][0], &slots[0][0], &layout_range[0][0], NULL};
  braid_moe_sent* sent = NULL;
  CHECK(braid_moe_send_dispatch(moe, &tokens, &sent) == BRAID_OK);
  const uint64_t phase = braid_moe_phase(sent);
  if (look_in_a_fork(comm, moe, sent, NULL) != 0) return 1;
  /* What is refused at once leaves the call as it is. */
  CHECK(braid_moe_receive_dispatch(sent, NULL) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_moe_receive_combine(sent, out, NULL) == BRAID_INVALID_ARGUMENT);
  CHECK(strstr(braid_last_error(), "got a dispatch's") != NULL);
  CHECK(braid_moe_receive_dispatch(sent, &to) == BRAID_OK);
  CHECK(count[0] == 2 && count[1] == (rank == 0 ? 2 : 3));
  for (int e = 0; e < L; ++e)
    for (int i = 0; i < count[e]; ++i)
      for (int h = 0; h < H; ++h) rows[e][i][h] *= (float)(rank * L + e + 1);
  if (not_of_the_dispatch(moe, &tokens, rows, &slots[0][0], &layout_range[0][0], kWeights[rank],
                          phase) != 0)
    return 1;
  CHECK(braid_moe_send_combine(moe, &tokens, rows, BRAID_FLOAT32, &slots[0][0], &layout_range[0][0],
                               kWeights[rank], phase, &sent) == BRAID_OK);
  if (look_in_a_fork(comm, moe, sent, NULL) != 0) return 1;
  CHECK(braid_moe_receive_combine(sent, NULL, NULL) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_moe_receive_dispatch(sent, &to) == BRAID_INVALID_ARGUMENT);
  CHECK(strstr(braid_last_error(), "got a combine's") != NULL);
  CHECK(braid_moe_receive_combine(sent, out, NULL) == BRAID_OK);
  for (int t = 0; t < 3; ++t)
    for (int h = 0; h < H; ++h) CHECK(out[t][h] == kFactors[rank][t] * x[t][h]);
  return 0;
}

/* Normal mode: sizes first, then rows; experts are summed here, ranks by combine. */
static int normal(braid_comm* comm, braid_moe* moe, int rank, int sums_by_node) {
  float x[3][H], bias[3][H], out[3][H], out_weights[3][K];
  const int tokens = rank == 0 ? 3 : 2; /* of rank 1 the third one chose nobody: it is not given */
  for (int t = 0; t < 3; ++t)
    for (int h = 0; h < H; ++h)
      x[t][h] = (float)(8 * rank + 2 * t + h), bias[t][h] = (float)(100 * t);
  braid_moe_batch batch = {0};
  batch.x = x;
  batch.row_bytes = sizeof x[0];
  batch.side = x; /* four bytes of each row once more, as if they were scales */
  batch.side_bytes = 4;
  batch.ids = kIds[rank];
  batch.weights = kWeights[rank];
  batch.has_weights = 1;
  batch.num_tokens = tokens;
  batch.num_topk = K;
  batch.num_experts = E;
  braid_moe_handle* handle = NULL;
  CHECK(braid_moe_begin_dispatch(moe, &batch, &handle) == BRAID_OK);
  if (look_in_a_fork(comm, moe, NULL, handle) != 0) return 1;
  static const int kRows[N] = {3, 4};
  CHECK(braid_moe_num_rows(handle) == kRows[rank]);
  int32_t rows_of[N], per_expert[L], source_token[5];
  CHECK(braid_moe_counts(handle, rows_of, per_expert) == BRAID_OK);
  CHECK(rows_of[0] == 2 && rows_of[1] == (rank == 0 ? 1 : 2) && per_expert[0] == 2);
  float rows[5][H], side[5], weights[5][K];
  int64_t ids[5][K];
  braid_moe_received to = {rows, side, ids[0], weights[0], source_token, 2};
  CHECK(braid_moe_finish_dispatch(handle, &to) == BRAID_INVALID_ARGUMENT);
  CHECK(strstr(braid_last_error(), "rows, got 2") != NULL);
  CHECK(braid_moe_combine(moe, handle, rows, BRAID_FLOAT32, H, NULL, NULL, NULL, 0, out, NULL) ==
        BRAID_INVALID_ARGUMENT);
  CHECK(strstr(braid_last_error(), "not finished") != NULL);
  to.num_rows = 5;
  CHECK(braid_moe_finish_dispatch(handle, &to) == BRAID_OK);
  CHECK(braid_moe_finish_dispatch(handle, &to) == BRAID_INVALID_ARGUMENT);
  if (look_in_a_fork(comm, moe, NULL, handle) != 0) return 1;
  CHECK(ids[4][0] == -1 && weights[4][1] == 0 && source_token[1] == 2);
  for (int i = 0; i < kRows[rank]; ++i) {
    float factor = 0;
    for (int k = 0; k < K; ++k)
      if (ids[i][k] >= 0) factor += weights[i][k] * (float)(rank * L + (int)ids[i][k] + 1);
    for (int h = 0; h < H; ++h) rows[i][h] *= factor;
  }
  CHECK(braid_moe_combine(moe, handle, rows, BRAID_FLOAT32, H, weights[0], bias, NULL, sums_by_node,
                          out, out_weights[0]) == BRAID_OK);
  for (int t = 0; t < tokens; ++t) {
    for (int h = 0; h < H; ++h) CHECK(out[t][h] == kFactors[rank][t] * x[t][h] + bias[t][h]);
    for (int k = 0; k < K; ++k)
      CHECK(out_weights[t][k] == (kIds[rank][t * K + k] < 0 ? 0 : kWeights[rank][t * K + k]));
  }
  CHECK(braid_moe_combine(NULL, handle, rows, BRAID_FLOAT32, H, NULL, NULL, NULL, 0, out, NULL) ==
        BRAID_INVALID_ARGUMENT);
  CHECK(braid_moe_combine(moe, handle, rows, BRAID_INT8, H, NULL, NULL, NULL, 0, out, NULL) ==
        BRAID_INVALID_ARGUMENT);
  braid_moe_free_handle(handle);
  return 0;
}

/* A dispatch that is begun and given up, by all ranks. */
static int give_up(braid_moe* moe, int rank) {
  float x[3][H] = {{0}};
  braid_moe_batch batch = {0};
  braid_moe_handle *handle = NULL, *second = NULL;
  batch.x = x;
  batch.row_bytes = sizeof x[0];
  batch.ids = kIds[rank];
  batch.num_tokens = 2;
  batch.num_topk = K;
  batch.num_experts = E;
  CHECK(braid_moe_begin_dispatch(moe, &batch, &handle) == BRAID_OK);
  CHECK(braid_moe_begin_dispatch(moe, &batch, &second) == BRAID_INVALID_ARGUMENT && second == NULL);
  CHECK(strstr(braid_last_error(), "not finished") != NULL);
  braid_moe_free_handle(handle);
  braid_moe_free_handle(NULL);
  batch.row_bytes = 20;
  CHECK(braid_moe_begin_dispatch(moe, &batch, &handle) == BRAID_INVALID_ARGUMENT && handle == NULL);
  CHECK(strstr(braid_last_error(), "multiple of 16 bytes, got 20") != NULL);
  batch.row_bytes = sizeof x[0];
  batch.has_weights = 1;
  CHECK(braid_moe_begin_dispatch(moe, &batch, &handle) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_moe_begin_dispatch(moe, NULL, &handle) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_moe_num_rows(NULL) == -1 &&
        braid_moe_counts(NULL, NULL, NULL) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_moe_finish_dispatch(NULL, NULL) == BRAID_INVALID_ARGUMENT);
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
  for (int can_shrink = 1; can_shrink >= 0; --can_shrink) {
    CHECK(braid_moe_create(comm, braid_moe_half_bytes(M, 4 * H, N, E), can_shrink, &moe) ==
          BRAID_OK);
    CHECK(exchange(comm, moe, rank) == 0);
    if (can_shrink) CHECK(braid_barrier(comm) == BRAID_OK && braid_moe_destroy(moe) == BRAID_OK);
  }
  for (int repeat = 0; repeat < 5; ++repeat)
    if (exchange(comm, moe, rank) != 0) return 1;
  CHECK(braid_moe_set_may_gather(NULL, 1) == BRAID_INVALID_ARGUMENT);
  CHECK(braid_moe_set_may_gather(moe, 1) == BRAID_OK);
  for (int repeat = 0; repeat < 6; ++repeat)
    if (normal(comm, moe, rank, repeat % 2) != 0) return 1;
  if (refusals(moe) != 0 || give_up(moe, rank) != 0) return 1;
  if (exchange(comm, moe, rank) != 0 || normal(comm, moe, rank, 0) != 0) return 1;
  CHECK(braid_barrier(comm) == BRAID_OK);
  CHECK(braid_moe_destroy(moe) == BRAID_OK);
  CHECK(braid_close(comm) == BRAID_OK);
  return 0;
}

/* On one host, or each rank on one of its own: then a thread of the buffer carries rows over the link. */
static int run_ranks(int port, int num_hosts) {
  pid_t children[N];
  for (int rank = 0; rank < N; ++rank) {
    children[rank] = fork();
    if (children[rank] != 0) continue;
    if (num_hosts > 1) {
      setenv("BRAID_HOST_ID", rank == 0 ? "host0" : "host1", 1);
      setenv("BRAID_LINKS", "rdma", 1);
    }
    _exit(run_rank(rank, port));
  }
  int failed = 0;
  for (int rank = 0; rank < N; ++rank) {
    int status = 0;
    if (waitpid(children[rank], &status, 0) < 0 || status != 0) failed = 1;
  }
  return failed;
}

int main(void) {
  setenv("BRAID_TUNE", "off", 1);
  const int port = 20000 + 8 * (int)(getpid() % 1500);
  if (run_ranks(port, 1) != 0 || run_ranks(port + 1, N) != 0) return 1;
  printf("dispatch and combine from C: exact\n");
  return 0;
}
