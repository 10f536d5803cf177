/* The C interface of the transfer engine end to end: two processes hand each other what names their
 * memory through pipes, move bytes in every way, and make the mistakes that must be answered by a
 * code and a message. The parent exits with 0 when both did. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "braid/engine.h"

enum { kBytes = 100000, kPage = 1000, kText = 4096 };
static const int64_t kLimitNs = 60000000000;
static const char* who = "parent";

#define CHECK(condition)                                                                      \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "%s:%d: %s: %s; last error: %s\n", __FILE__, __LINE__, who, #condition, \
              braid_last_error());                                                            \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)
#define CHECK_OK(call) CHECK((call) == BRAID_OK)
#define CHECK_FAILS(call, code, words) \
  CHECK((call) == (code) && strstr(braid_last_error(), words) != NULL)

struct end {
  int in, out;
  braid_engine* engine;
  braid_region* region;
  braid_remote* remote;
  braid_peer* peer;
  uint8_t memory[kBytes];
};

static uint8_t value(int salt, int i) { return (uint8_t)(salt * 31 + i * 7 + i / 251); }

static void put(int fd, const void* bytes, size_t size) {
  CHECK(write(fd, &size, sizeof size) == (ssize_t)sizeof size);
  CHECK(write(fd, bytes, size) == (ssize_t)size);
}

static size_t get(int fd, void* bytes) {
  size_t size = 0;
  CHECK(read(fd, &size, sizeof size) == (ssize_t)sizeof size && size <= kText);
  CHECK(read(fd, bytes, size) == (ssize_t)size);
  return size;
}

static void meet(struct end* e) { /* both are here */
  char word[kText];
  put(e->out, "here", 4);
  CHECK(get(e->in, word) == 4);
}

static void wait_for(braid_ticket* ticket) {
  CHECK_OK(braid_ticket_wait(ticket, kLimitNs));
  CHECK(braid_ticket_done(ticket) == 1);
  braid_ticket_free(ticket);
}

static void open_end(struct end* e, int salt) {
  char text[kText];
  size_t size = 0;
  braid_engine_options options;
  CHECK_OK(braid_engine_defaults(&options, sizeof options));
  options.name = who;
  options.token = "a token of tests";
  options.hosts = "127.0.0.1";
  options.nics = "none";
  CHECK_OK(braid_engine_create(&options, &e->engine));
  for (int i = 0; i < kBytes; ++i) e->memory[i] = value(salt, i);
  CHECK_OK(braid_engine_register(e->engine, e->memory, kBytes, -1, &e->region));
  CHECK_OK(braid_engine_descriptor(e->engine, e->region, NULL, &size));
  CHECK(size > 0 && size <= kText);
  CHECK_OK(braid_engine_descriptor(e->engine, e->region, text, &size));
  put(e->out, text, size);
  size = kText;
  CHECK_OK(braid_engine_address(e->engine, text, &size));
  put(e->out, text, size);
  size = get(e->in, text);
  CHECK_OK(braid_engine_import(e->engine, text, size, &e->remote));
  CHECK(braid_remote_bytes(e->remote) == kBytes);
  size = get(e->in, text);
  CHECK_OK(braid_engine_import_peer(e->engine, text, size, &e->peer));
}

static void ended(void* context, braid_code code, const char* message) {
  *(_Atomic int*)context = code == BRAID_OK && message[0] == 0 ? 1 : 2;
}

static void move(struct end* e) { /* the parent's part */
  braid_ticket* ticket = NULL;
  _Atomic int called = 0;  // by the thread of callbacks
  braid_transfer_options with = {0};
  with.size = sizeof with;
  with.has_immediate = 1;
  with.immediate = 7;
  with.notification = "landed";
  with.notification_bytes = 6;
  with.callback = ended;
  with.context = (void*)&called;
  CHECK_OK(braid_engine_write(e->engine, e->region, 10, e->remote, 20, 500, &with, &ticket));
  wait_for(ticket);
  for (int i = 0; i < 6000 && called == 0; ++i) usleep(10000);
  CHECK(called == 1);

  const uint64_t sources[] = {3, 1, 4}, targets[] = {50, 99, 60};
  braid_page_list pages = {0};
  pages.size = sizeof pages;
  pages.page_bytes = kPage;
  pages.source_ids = sources;
  pages.target_ids = targets;
  pages.count = 3;
  with.notification_bytes = 0;
  with.callback = NULL;
  with.immediate = 8;
  CHECK_OK(braid_engine_write_pages(e->engine, e->region, e->remote, &pages, &with, &ticket));
  wait_for(ticket);
  CHECK_OK(braid_engine_read(e->engine, e->region, 0, e->remote, 70000, 1000, NULL, &ticket));
  wait_for(ticket);
  for (int i = 0; i < 1000; ++i) CHECK(e->memory[i] == value(2, 70000 + i));
  CHECK(e->memory[1000] == value(1, 1000));
  CHECK_OK(braid_engine_read_pages(e->engine, e->region, e->remote, &pages, NULL, &ticket));
  wait_for(ticket);
  for (int i = 0; i < kPage; ++i) CHECK(e->memory[60 * kPage + i] == value(2, 4 * kPage + i));
  /* Two planes of one region, with offsets of their own. */
  const braid_page_plane planes[] = {{e->region, e->remote, 5 * kPage, 70 * kPage},
                                     {e->region, e->remote, 6 * kPage, 80 * kPage}};
  const uint64_t none[] = {0}, third[] = {3};
  pages.source_ids = none;
  pages.target_ids = third;
  pages.count = 1;
  with.immediate = 10;
  CHECK_OK(braid_engine_write_planes(e->engine, planes, 2, &pages, &with, &ticket));
  wait_for(ticket);
  CHECK_OK(braid_engine_read_planes(e->engine, planes, 2, &pages, NULL, &ticket));
  wait_for(ticket);
  for (int i = 0; i < kPage; ++i) CHECK(e->memory[8 * kPage + i] == value(2, 70 * kPage + i));
  for (int i = 0; i < kPage; ++i) CHECK(e->memory[9 * kPage + i] == value(2, 80 * kPage + i));
  CHECK_OK(braid_engine_signal(e->engine, e->peer, 9, NULL, &ticket));
  wait_for(ticket);
  CHECK_OK(braid_engine_send(e->engine, e->peer, "hello", 5, NULL, NULL));
  CHECK_OK(braid_engine_notify(e->engine, e->peer, "note", 4, NULL, NULL));
}

static void look(struct end* e) { /* the child's part */
  static char text[BRAID_ENGINE_MOST_MESSAGE_BYTES];
  size_t size = sizeof text;
  uint64_t flag = 0, count = 0;
  braid_ticket* ticket = NULL;
  CHECK_OK(braid_engine_take_notification(e->engine, kLimitNs, text, &size));
  CHECK(size == 6 && memcmp(text, "landed", 6) == 0);
  for (int i = 0; i < 500; ++i) CHECK(e->memory[20 + i] == value(1, 10 + i));
  CHECK_OK(braid_engine_expect(e->engine, 8, 3, &flag, NULL, NULL, &ticket));
  wait_for(ticket);
  CHECK(flag == 1);
  for (int i = 0; i < kPage; ++i) CHECK(e->memory[99 * kPage + i] == value(1, kPage + i));
  CHECK(e->memory[51 * kPage] == value(2, 51 * kPage));
  CHECK_OK(braid_engine_expect(e->engine, 10, 2, NULL, NULL, NULL, &ticket));
  wait_for(ticket);
  for (int i = 0; i < kPage; ++i) CHECK(e->memory[73 * kPage + i] == value(1, 5 * kPage + i));
  for (int i = 0; i < kPage; ++i) CHECK(e->memory[83 * kPage + i] == value(1, 6 * kPage + i));
  CHECK(e->memory[74 * kPage] == value(2, 74 * kPage));
  CHECK_OK(braid_engine_expect(e->engine, 9, 1, NULL, NULL, NULL, &ticket));
  wait_for(ticket);
  CHECK_OK(braid_engine_count(e->engine, 7, &count));
  CHECK(count == 1);
  size = sizeof text;
  CHECK_OK(braid_engine_recv(e->engine, kLimitNs, text, &size));
  CHECK(size == 5 && memcmp(text, "hello", 5) == 0);
  size = sizeof text;
  CHECK_OK(braid_engine_take_notification(e->engine, kLimitNs, text, &size));
  CHECK(size == 4 && memcmp(text, "note", 4) == 0);
  size = sizeof text;
  CHECK_FAILS(braid_engine_recv(e->engine, 0, text, &size), BRAID_TIMEOUT, "nothing has come");
}

static void make_mistakes(struct end* e) {
  char text[kText];
  size_t size = 3;
  braid_ticket* ticket = NULL;
  braid_region* region = NULL;
  braid_remote* remote = NULL;
  braid_engine* engine = NULL;
  braid_engine_options options;
  CHECK_FAILS(braid_engine_write(NULL, e->region, 0, e->remote, 0, 1, NULL, NULL),
              BRAID_INVALID_ARGUMENT, "engine is NULL");
  CHECK_FAILS(braid_engine_write(e->engine, NULL, 0, e->remote, 0, 1, NULL, NULL),
              BRAID_INVALID_ARGUMENT, "source is NULL");
  CHECK_FAILS(braid_engine_write(e->engine, e->region, 0, e->remote, 1, kBytes, NULL, NULL),
              BRAID_INVALID_ARGUMENT, "100000 bytes at offset 1 of region");
  CHECK_FAILS(braid_engine_write_pages(e->engine, e->region, e->remote, NULL, NULL, NULL),
              BRAID_INVALID_ARGUMENT, "pages is NULL");
  braid_page_list pages = {0};
  pages.size = sizeof pages;
  pages.count = 1;
  CHECK_FAILS(braid_engine_write_pages(e->engine, e->region, e->remote, &pages, NULL, NULL),
              BRAID_INVALID_ARGUMENT, "source_ids is NULL");
  pages.count = 0;
  const braid_page_plane planes[] = {{e->region, e->remote, 0, 0}, {e->region, NULL, 0, 0}};
  CHECK_FAILS(braid_engine_write_planes(e->engine, planes, 2, &pages, NULL, NULL),
              BRAID_INVALID_ARGUMENT, "plane 1: its remote is NULL");
  CHECK_FAILS(braid_engine_write_planes(e->engine, NULL, 2, &pages, NULL, NULL),
              BRAID_INVALID_ARGUMENT, "planes is NULL");
  CHECK_FAILS(braid_engine_read_planes(e->engine, planes, 0, &pages, NULL, NULL),
              BRAID_INVALID_ARGUMENT, "asked for 1 to 192 planes, found 0");
  CHECK_FAILS(braid_engine_read_planes(e->engine, planes, 193, &pages, NULL, NULL),
              BRAID_INVALID_ARGUMENT, "193 planes, 192 are the limit");
  pages.size = 1000;
  CHECK_FAILS(braid_engine_read_pages(e->engine, e->region, e->remote, &pages, NULL, NULL),
              BRAID_INVALID_ARGUMENT, "options of 1000 bytes");
  CHECK_FAILS(braid_engine_register(e->engine, NULL, 10, -1, &region), BRAID_INVALID_ARGUMENT,
              "a region of 10 bytes");
  CHECK_FAILS(braid_engine_register(e->engine, text, 10, 3, &region), BRAID_UNSUPPORTED, "GPU 3");
  CHECK_FAILS(braid_engine_import(e->engine, "x", 1, &remote), BRAID_INVALID_ARGUMENT, "");
  CHECK_FAILS(braid_engine_address(e->engine, text, &size), BRAID_INVALID_ARGUMENT,
              "found room for 3");
  size = 10;
  CHECK_FAILS(braid_engine_recv(e->engine, 0, text, &size), BRAID_INVALID_ARGUMENT,
              "room for 10 bytes");
  uint64_t flags[2] = {0, 0};
  uint64_t* const aslant = (uint64_t*)((char*)flags + 4);
  CHECK_FAILS(braid_engine_expect(e->engine, 1, 1, aslant, NULL, NULL, NULL),
              BRAID_INVALID_ARGUMENT, "it is not aligned to 8 bytes");
  /* As a GPU's memory is to the processor; the engine has none. */
  uint64_t* const closed = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(closed != MAP_FAILED);
  CHECK_FAILS(braid_engine_expect(e->engine, 1, 1, closed, NULL, NULL, NULL),
              BRAID_INVALID_ARGUMENT, "neither memory of the host nor of this engine's GPU");
  munmap(closed, 4096);
  CHECK_OK(braid_engine_expect(e->engine, 1, 1, NULL, NULL, NULL, &ticket));
  CHECK_FAILS(braid_engine_expect(e->engine, 1, 1, NULL, NULL, NULL, NULL), BRAID_INVALID_ARGUMENT,
              "expected already");
  CHECK_FAILS(braid_ticket_wait(ticket, 1000), BRAID_TIMEOUT, "immediate 1");
  CHECK(braid_ticket_done(ticket) == 0);
  CHECK_OK(braid_engine_forget(e->engine, 1));
  CHECK_OK(braid_engine_discard(e->engine, 1));
  CHECK_FAILS(braid_ticket_wait(ticket, kLimitNs), BRAID_CANCELLED, "nobody expects it");
  braid_ticket_free(ticket);
  CHECK_OK(braid_engine_expect(e->engine, 1, 1, NULL, NULL, NULL, &ticket));
  CHECK_OK(braid_engine_cancel(e->engine, ticket));
  CHECK_FAILS(braid_ticket_wait(ticket, kLimitNs), BRAID_CANCELLED, "nobody expects it");
  braid_ticket* again = NULL;
  CHECK_OK(braid_engine_expect(e->engine, 1, 1, NULL, NULL, NULL, &again));
  CHECK_OK(braid_engine_cancel(e->engine, ticket)); /* of the old one: the new one stays */
  CHECK_FAILS(braid_ticket_wait(again, 1000), BRAID_TIMEOUT, "immediate 1");
  CHECK_OK(braid_engine_cancel(e->engine, again));
  braid_ticket_free(ticket);
  braid_ticket_free(again);
  CHECK_FAILS(braid_engine_register(e->engine, text, 10, -9, &region), BRAID_INVALID_ARGUMENT,
              "device -9");
  CHECK_OK(braid_engine_defaults(&options, sizeof options));
  options.nics = "nonesuch:1";
  engine = e->engine;
  CHECK_FAILS(braid_engine_create(&options, &engine), BRAID_UNAVAILABLE, "nonesuch");
  CHECK(engine == NULL);
  options.nics = "none";
  options.device = -7;
  CHECK_FAILS(braid_engine_create(&options, &engine), BRAID_INVALID_ARGUMENT, "device -7");
  options.device = -1;
  options.most_transfers = 0;
  CHECK_FAILS(braid_engine_create(&options, &engine), BRAID_INVALID_ARGUMENT, "most_transfers");
  CHECK_FAILS(braid_engine_defaults(&options, 100000), BRAID_INVALID_ARGUMENT, "100000 bytes");
  CHECK_FAILS(braid_ticket_wait(NULL, 0), BRAID_INVALID_ARGUMENT, "ticket is NULL");
  CHECK_OK(braid_engine_close(NULL));
  braid_ticket_free(NULL);
}

/* Engines number their regions alike: that of another is told from ours by more than its number. */
static void mix_up_regions(struct end* e) {
  static uint8_t memory[kPage];
  char text[kText];
  size_t size = kText;
  braid_engine* other = NULL;
  braid_region* region = NULL;
  braid_engine_options options;
  CHECK_OK(braid_engine_defaults(&options, sizeof options));
  options.token = "a token of tests";
  options.nics = "none";
  CHECK_OK(braid_engine_create(&options, &other));
  CHECK_OK(braid_engine_register(other, memory, kPage, -1, &region));
  CHECK_FAILS(braid_engine_descriptor(e->engine, region, text, &size), BRAID_INVALID_ARGUMENT,
              "is another engine's");
  CHECK_FAILS(braid_engine_unregister(e->engine, region, kLimitNs), BRAID_INVALID_ARGUMENT,
              "is another engine's");
  CHECK_OK(braid_engine_descriptor(e->engine, e->region, text, &size));
  CHECK_OK(braid_engine_unregister(other, region, kLimitNs));
  size = kText;
  CHECK_FAILS(braid_engine_descriptor(other, region, text, &size), BRAID_INVALID_ARGUMENT,
              "was unregistered");
  braid_region_free(region);
  CHECK_OK(braid_engine_close(other));
}

static void lose_the_region(struct end* e, int is_parent) {
  braid_ticket* ticket = NULL;
  if (!is_parent) CHECK_OK(braid_engine_unregister(e->engine, e->region, kLimitNs));
  meet(e);
  if (is_parent) {
    CHECK_OK(braid_engine_write(e->engine, e->region, 0, e->remote, 0, 100, NULL, &ticket));
    CHECK_FAILS(braid_ticket_wait(ticket, kLimitNs), BRAID_INVALID_ARGUMENT, "was unregistered");
    CHECK_OK(braid_engine_cancel(e->engine, ticket)); /* too late, and no harm */
    braid_ticket_free(ticket);
    CHECK_OK(braid_engine_disconnect(e->engine, e->peer));
  }
  meet(e);
}

/* It has none of the engine's threads: a transfer waited there for ever, and close for a thread. */
static void look_in_a_fork(struct end* e) {
  char text[4096];
  size_t size = sizeof text;
  braid_ticket *ticket = NULL, *never = NULL;
  int status = 1;
  CHECK_OK(braid_engine_expect(e->engine, 4711, 1, NULL, NULL, NULL, &never));
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(20);
    CHECK_FAILS(braid_engine_write(e->engine, e->region, 0, e->remote, 0, 1, NULL, &ticket),
                BRAID_INVALID_ARGUMENT, "cannot be used in its fork");
    CHECK_FAILS(braid_engine_signal(e->engine, e->peer, 1, NULL, NULL), BRAID_INVALID_ARGUMENT,
                "braid_engine_signal: the engine was made by process");
    CHECK_FAILS(braid_engine_health(e->engine, text, &size), BRAID_INVALID_ARGUMENT, "in its fork");
    CHECK_FAILS(braid_ticket_wait(never, -1), BRAID_INVALID_ARGUMENT, "in its fork");
    CHECK_OK(braid_engine_close(e->engine));
    braid_ticket_free(never);
    _exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK_OK(braid_engine_forget(e->engine, 4711));
  braid_ticket_free(never);
}

static void run(struct end* e, int is_parent) {
  static char lines[65536];
  size_t size = sizeof lines;
  open_end(e, is_parent ? 1 : 2);
  meet(e);
  if (is_parent)
    move(e);
  else
    look(e);
  CHECK_OK(braid_engine_health(e->engine, lines, &size));
  CHECK(size == strlen(lines) + 1);
  make_mistakes(e);
  mix_up_regions(e);
  look_in_a_fork(e);
  meet(e);
  lose_the_region(e, is_parent);
  CHECK_OK(braid_engine_close(e->engine));
  braid_region_free(e->region); /* handles may be freed after their engine */
  braid_remote_free(e->remote);
  braid_peer_free(e->peer);
}

int main(void) {
  static struct end end;
  int down[2], up[2], status = 1;
  alarm(110);
  CHECK(pipe(down) == 0 && pipe(up) == 0);
  const pid_t child = fork(); /* before either has an engine */
  CHECK(child >= 0);
  if (child == 0) who = "child";
  end.in = child == 0 ? down[0] : up[0];
  end.out = child == 0 ? up[1] : down[1];
  close(child == 0 ? down[1] : up[1]);
  close(child == 0 ? up[0] : down[0]);
  run(&end, child != 0);
  if (child == 0) return 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  puts("bindings: the engine's C interface works");
  return 0;
}
