/* A libbraid-nccl-core.so that takes everything over and writes it down; with FAKE_CORE_OPENS=0 it
 * agrees with the other ranks not to. */
#include <stdio.h>
#include <stdlib.h>

#include "bindings/nccl/core.h"

static braid_nccl_seat* sign(const void* key, size_t key_bytes, uint64_t settings,
                             braid_nccl_why why) {
  (void)key;
  (void)settings;
  (void)why;
  printf("core sign, key of %zu bytes\n", key_bytes);
  return (braid_nccl_seat*)&printf;
}
static void seal(braid_nccl_seat* seat) {
  (void)seat;
  printf("core seal\n");
}
static int mark(char* id, braid_nccl_why why) {
  (void)id;
  (void)why;
  printf("core mark\n");
  return 0;
}
static int open_seat(braid_nccl_seat* seat, const braid_nccl_place* place, braid_nccl_why why) {
  (void)seat;
  (void)why;
  printf("core open %d of %d on gpu %d\n", place->rank, place->num_ranks, place->device);
  const char* const opens = getenv("FAKE_CORE_OPENS");
  return opens == NULL || opens[0] != '0';
}
/* With FAKE_CORE_WINS, bits of sizes: who wins; else everything. */
static int race(braid_nccl_seat* seat, int op, int is_large, int in_windows,
                const braid_nccl_real* real, braid_nccl_choice* choice, braid_nccl_why why) {
  (void)seat;
  (void)in_windows;
  (void)why;
  const char* const wins = getenv("FAKE_CORE_WINS");
  printf("core race op %d, large %d, with NCCL %d\n", op, is_large,
         real != NULL ? real->version : 0);
  choice->measured = 0x1ff;
  choice->won = wins != NULL ? (uint32_t)strtoul(wins, NULL, 0) : 0x1ff;
  return 0;
}
static int run(braid_nccl_seat* seat, const braid_nccl_call* call, braid_nccl_why why) {
  (void)seat;
  (void)why;
  printf("core run op %d, %zu of type %d, root %d\n", call->op, (size_t)call->count, call->dtype,
         call->root);
  return 0;
}
static int add_window(braid_nccl_seat* seat, void* memory, uint64_t bytes, braid_nccl_why why) {
  (void)seat;
  (void)memory;
  (void)why;
  printf("core add window of %zu\n", (size_t)bytes);
  return 0;
}
static int drop_window(braid_nccl_seat* seat, void* memory, braid_nccl_why why) {
  (void)seat;
  (void)memory;
  (void)why;
  printf("core drop window\n");
  return 0;
}
static int join(braid_nccl_seat* seat, void* const* streams, size_t num_streams,
                braid_nccl_why why) {
  (void)seat;
  (void)streams;
  (void)num_streams;
  (void)why;
  return 0;
}
static int is_capturing(int device, void* stream) {
  (void)device;
  (void)stream;
  return 0;
}
static int status(braid_nccl_seat* seat, braid_nccl_why why) {
  (void)seat;
  (void)why;
  return 0;
}
static void interrupt(braid_nccl_seat* seat) {
  (void)seat;
  printf("core interrupt\n");
}
static void close_seat(braid_nccl_seat* seat, int is_in_peace) {
  (void)seat;
  printf("core close %d\n", is_in_peace);
}
static void release(braid_nccl_seat* seat) { (void)seat; }

const braid_nccl_core* braid_nccl_core_table(void) {
  static const braid_nccl_core table = {BRAID_NCCL_CORE_VERSION,
                                        mark,
                                        sign,
                                        seal,
                                        open_seat,
                                        race,
                                        run,
                                        add_window,
                                        drop_window,
                                        join,
                                        is_capturing,
                                        status,
                                        interrupt,
                                        close_seat,
                                        release};
  return &table;
}
