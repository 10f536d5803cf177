/* Pages written with fi_writemsg and nothing around it: what the transfer engine is measured against.
 *
 *   plain_write target PROVIDER ADDRESS BYTES        its memory, and polls
 *   plain_write source PROVIDER ADDRESS BYTES WINDOW
 *
 * Both read lines on standard input and answer each with a line of JSON, as `braid bench engine` asks:
 *
 *   name                      {"name": hex, "address": n, "key": n}
 *   meet HEX ADDRESS KEY      {}                      the source: whom it writes to
 *   fill NUMBER               {}                      the pattern of bench/engine/pattern.py; -1: zeroes
 *   ids PAGE COUNT s0 s1 ... t0 t1 ...                {} pages' numbers, source's and target's
 *   pages REPEATS             {"samples_us": [...]}   all pages, each time
 *   write REPEATS             {"samples_us": [...]}   page after page, each waited for: us for one
 *   check NUMBER              {"wrong_bytes": n}      the target: against its own ids
 *
 *   work / rest               {}                      the target: polls, or leaves the core to others
 *
 * Every write asks for FI_DELIVERY_COMPLETE, as the engine's do; its completion is waited for. The
 * target must poll, for some providers move only while they are polled.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { kMostWindow = 1024, kNameBytes = 256, kQueueDepth = 2048 };

static struct fid_domain* domain;
static struct fid_ep* endpoint;
static struct fid_cq* queue;
static struct fid_av* peers;
static struct fid_mr* memory_region;
static int has_addresses; /* FI_MR_VIRT_ADDR: remote places are addresses, not offsets */
static uint64_t* memory;
static uint64_t memory_bytes, window, window_bytes = 8 << 20;
static fi_addr_t peer;
static uint64_t peer_address, peer_key;
static uint64_t page_bytes, num_pages, *source_ids, *target_ids;
static struct fi_context2 contexts[kMostWindow];
static int free_contexts[kMostWindow], num_free;
static int is_polling;

static void fail(const char* what, long code) {
  printf("{\"error\": \"%s: %s\"}\n", what, fi_strerror((int)-code));
  fflush(stdout);
  exit(1);
}

static void must(long code, const char* what) {
  if (code < 0) fail(what, code);
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static struct fi_info* ask(const char* provider, const char* address) {
  const int is_named = strcmp(address, "-") != 0;
  struct fi_info *hints = fi_allocinfo(), *found = NULL;
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
  hints->ep_attr->type = FI_EP_RDM;
  hints->fabric_attr->prov_name = strdup(provider);
  hints->domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->addr_format = is_named ? FI_SOCKADDR_IN : FI_FORMAT_UNSPEC;
  must(fi_getinfo(FI_VERSION(1, 17), is_named ? address : NULL, is_named ? "0" : NULL,
                  is_named ? FI_SOURCE : 0, hints, &found),
       "fi_getinfo");
  fi_freeinfo(hints);
  return found;
}

/* At every end of the program: provider shm's endpoint is a file that stays in /dev/shm otherwise. */
static void close_endpoint(void) {
  if (endpoint != NULL) fi_close(&endpoint->fid);
}

static void open_endpoint(struct fi_info* info) {
  struct fid_fabric* fabric;
  struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_DATA, .size = kQueueDepth};
  must(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
  must(fi_domain(fabric, info, &domain, NULL), "fi_domain");
  must(fi_av_open(domain, &av_attr, &peers, NULL), "fi_av_open");
  must(fi_cq_open(domain, &cq_attr, &queue, NULL), "fi_cq_open");
  must(fi_endpoint(domain, info, &endpoint, NULL), "fi_endpoint");
  atexit(close_endpoint);
  must(fi_ep_bind(endpoint, &peers->fid, 0), "fi_ep_bind");
  must(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
  must(fi_enable(endpoint), "fi_enable");
}

static void register_memory(struct fi_info* info, uint64_t key) {
  memory = aligned_alloc(4096, memory_bytes);
  if (memory == NULL) fail("memory", -ENOMEM);
  memset(memory, 0, memory_bytes);
  must(
      fi_mr_reg(domain, memory, memory_bytes, FI_WRITE | FI_READ | FI_REMOTE_WRITE | FI_REMOTE_READ,
                0, key, 0, &memory_region, NULL),
      "fi_mr_reg");
  if (info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
    must(fi_mr_bind(memory_region, &endpoint->fid, 0), "fi_mr_bind");
    must(fi_mr_enable(memory_region), "fi_mr_enable");
  }
  has_addresses = (info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
}

/* Completions give their contexts back. A failed write ends the program: no figure comes of it. */
static size_t poll_queue(void) {
  struct fi_cq_data_entry entries[32];
  const ssize_t got = fi_cq_read(queue, entries, 32);
  if (got == -FI_EAGAIN) return 0;
  if (got < 0) {
    struct fi_cq_err_entry error = {0};
    fi_cq_readerr(queue, &error, 0);
    fail("a write failed", -error.err);
  }
  size_t done = 0;
  for (ssize_t i = 0; i < got; ++i) {
    const struct fi_context2* context = entries[i].op_context;
    if (context < contexts || context >= contexts + kMostWindow) continue;
    free_contexts[num_free++] = (int)(context - contexts);
    ++done;
  }
  return done;
}

static int post(uint64_t page, int context) {
  char* local = (char*)memory + source_ids[page] * page_bytes;
  void* description = fi_mr_desc(memory_region);
  const struct iovec part = {local, page_bytes};
  const struct fi_rma_iov remote = {peer_address + target_ids[page] * page_bytes, page_bytes,
                                    peer_key};
  const struct fi_msg_rma message = {.msg_iov = &part,
                                     .desc = &description,
                                     .iov_count = 1,
                                     .addr = peer,
                                     .rma_iov = &remote,
                                     .rma_iov_count = 1,
                                     .context = &contexts[context]};
  const ssize_t code = fi_writemsg(endpoint, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
  if (code == -FI_EAGAIN) return 0;
  must(code, "fi_writemsg");
  return 1;
}

static uint64_t pages_at_once(void) {
  uint64_t most = window_bytes / page_bytes;
  if (most < 8) most = 8;
  return most < window ? most : window;
}

static double write_all(uint64_t most) {
  const double start = now_us();
  uint64_t posted = 0, done = 0;
  int idle = 0;
  while (done < num_pages) {
    while (posted < num_pages && posted - done < most && num_free > 0) {
      if (!post(posted, free_contexts[num_free - 1])) break;
      --num_free;
      ++posted;
    }
    const size_t got = poll_queue();
    done += got;
    idle = got ? 0 : idle + 1;
    if (idle > 200) sched_yield(); /* the target may need this core */
  }
  return now_us() - start;
}

/* --- what is asked --- */

static uint64_t place(uint64_t i) { return (i + 1) * UINT64_C(0x9E3779B97F4A7C15); }
static uint64_t key_of(uint64_t number) { return number * UINT64_C(0xD1342543DE82EF95) + 1; }

static void on_name(void) {
  unsigned char name[kNameBytes];
  size_t bytes = sizeof name;
  must(fi_getname(&endpoint->fid, name, &bytes), "fi_getname");
  printf("{\"name\": \"");
  for (size_t i = 0; i < bytes; ++i) printf("%02x", name[i]);
  printf("\", \"address\": %" PRIu64 ", \"key\": %" PRIu64 "}\n",
         has_addresses ? (uint64_t)(uintptr_t)memory : 0, fi_mr_key(memory_region));
}

static void on_meet(char* words) {
  unsigned char name[kNameBytes] = {0};
  char *rest = NULL, *hex = strtok_r(words, " ", &rest);
  for (size_t i = 0; hex != NULL && hex[2 * i] != 0 && i < sizeof name; ++i)
    sscanf(hex + 2 * i, "%2hhx", &name[i]);
  peer_address = strtoull(strtok_r(NULL, " ", &rest), NULL, 10);
  peer_key = strtoull(strtok_r(NULL, " ", &rest), NULL, 10);
  if (fi_av_insert(peers, name, 1, &peer, 0, NULL) != 1) fail("fi_av_insert", -EINVAL);
  printf("{}\n");
}

static void on_fill(const char* words) {
  const long long number = atoll(words);
  for (uint64_t i = 0; i < memory_bytes / 8; ++i)
    memory[i] = number < 0 ? 0 : place(i) ^ key_of((uint64_t)number);
  printf("{}\n");
}

static void on_ids(char* words) {
  char* rest = words;
  page_bytes = strtoull(rest, &rest, 10);
  num_pages = strtoull(rest, &rest, 10);
  if (page_bytes == 0 || num_pages == 0 || num_pages * page_bytes > memory_bytes)
    fail("pages outside of the memory", -EINVAL);
  source_ids = realloc(source_ids, num_pages * sizeof *source_ids);
  target_ids = realloc(target_ids, num_pages * sizeof *target_ids);
  for (uint64_t i = 0; i < num_pages; ++i) source_ids[i] = strtoull(rest, &rest, 10);
  for (uint64_t i = 0; i < num_pages; ++i) target_ids[i] = strtoull(rest, &rest, 10);
  printf("{}\n");
}

static void on_write(const char* words, uint64_t most, double calls) {
  const int repeats = atoi(words);
  printf("{\"samples_us\": [");
  for (int i = 0; i < repeats; ++i) printf("%s%.3f", i ? ", " : "", write_all(most) / calls);
  printf("]}\n");
}

static void on_check(const char* words) {
  const uint64_t number = strtoull(words, NULL, 10), page_words = page_bytes / 8;
  uint64_t wrong = 0;
  for (uint64_t page = 0; page < num_pages; ++page)
    for (uint64_t i = 0; i < page_words; ++i) {
      const uint64_t found = memory[target_ids[page] * page_words + i];
      uint64_t x = found ^ place(source_ids[page] * page_words + i) ^ key_of(number);
      for (; x != 0; x >>= 8) wrong += (x & 0xff) != 0;
    }
  printf("{\"wrong_bytes\": %" PRIu64 "}\n", wrong);
}

static void answer(char* line) {
  char* words = strchr(line, ' ');
  if (words != NULL) *words++ = 0;
  if (strcmp(line, "name") == 0)
    on_name();
  else if (strcmp(line, "meet") == 0)
    on_meet(words);
  else if (strcmp(line, "fill") == 0)
    on_fill(words);
  else if (strcmp(line, "ids") == 0)
    on_ids(words);
  else if (strcmp(line, "pages") == 0)
    on_write(words, pages_at_once(), 1);
  else if (strcmp(line, "write") == 0)
    on_write(words, 1, (double)num_pages);
  else if (strcmp(line, "check") == 0)
    on_check(words);
  else if (strcmp(line, "work") == 0)
    is_polling = printf("{}\n") > 0;
  else if (strcmp(line, "rest") == 0)
    is_polling = printf("{}\n") < 0;
  else
    printf("{\"error\": \"no such word\"}\n");
  fflush(stdout);
}

/* Lines of any length; while it works, the queue is polled between two looks at the input. */
static void serve(void) {
  size_t room = 1 << 16, filled = 0;
  char* text = malloc(room);
  unsigned idle = 0;
  while (1) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (int i = 0; is_polling && i < 64; ++i)
      if (poll_queue() != 0) idle = 0;
    if (is_polling && ++idle > 16) sched_yield();
    if (poll(&input, 1, is_polling ? 0 : -1) <= 0) continue;
    if (filled + 4096 > room) text = realloc(text, room *= 2);
    const ssize_t got = read(STDIN_FILENO, text + filled, room - filled - 1);
    if (got <= 0) return;
    filled += (size_t)got;
    text[filled] = 0;
    if (text[filled - 1] != '\n') continue; /* one line at a time is asked */
    text[filled - 1] = 0;
    filled = 0;
    answer(text);
  }
}

int main(int count, char** words) {
  if (count < 5) {
    fprintf(stderr, "plain_write source|target PROVIDER ADDRESS|- BYTES [WINDOW]\n");
    return 2;
  }
  memory_bytes = strtoull(words[4], NULL, 10);
  window = count > 5 ? strtoull(words[5], NULL, 10) : 256;
  if (window == 0 || window > kMostWindow) window = kMostWindow;
  for (num_free = 0; num_free < kMostWindow; ++num_free) free_contexts[num_free] = num_free;
  struct fi_info* info = ask(words[2], words[3]);
  open_endpoint(info);
  register_memory(info, strcmp(words[1], "source") == 0 ? 7 : 9);
  serve();
  return 0;
}
