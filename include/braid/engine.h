/* braid: the transfer engine. One-sided writes and reads between processes, from any thread to any
 * peer, complete when the target has counted them.
 *
 *   braid_engine_options options;
 *   braid_engine_defaults(&options, sizeof options);
 *   braid_engine_create(&options, &engine);
 *   braid_engine_register(engine, pages, bytes, -1, &region);       once
 *   braid_engine_descriptor(engine, region, text, &text_bytes);     opaque; ship it by any means
 *   braid_engine_import(engine, theirs, their_bytes, &remote);      a peer's
 *   braid_engine_write(engine, region, 0, remote, 4096, 65536, &with, &ticket);
 *   braid_ticket_wait(ticket, -1);
 *   ... and there: braid_engine_expect(engine, 7, 1, NULL, NULL, NULL, &ticket);
 *
 * A transfer under an immediate makes the target's count of it grow: a write by 1, pages by one for
 * each page. When a ticket has ended, well or not, no byte of its transfer is read or lands any
 * more; until then a source's memory must not change.
 *
 * Functions return a braid_code, and braid_last_error() has the message, as in braid.h. Any thread
 * may call anything, at once, but braid_engine_close(), which must be the last call on its engine.
 * Times are ns. Handles that a function gives are the caller's to free, before or after the engine
 * is closed; a handle belongs to the engine that made it. A fork has no engine: functions are
 * BRAID_INVALID_ARGUMENT there, and closing and freeing touch nothing of its parent's.
 */
#ifndef BRAID_ENGINE_H_
#define BRAID_ENGINE_H_

#include "braid/braid.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct braid_engine braid_engine;
typedef struct braid_region braid_region; /* registered memory */
typedef struct braid_remote braid_remote; /* a peer's region */
typedef struct braid_peer braid_peer;     /* a peer's address */
typedef struct braid_ticket braid_ticket; /* something under way that ends once */

enum { BRAID_ENGINE_MOST_MESSAGE_BYTES = 65536 };

/* Filled by braid_engine_defaults(); then change what you want. */
typedef struct braid_engine_options {
  size_t size;        /* of this structure, as the caller was compiled */
  const char* name;   /* in messages of peers; NULL: "engine" */
  const char* hosts;  /* where peers connect, "10.0.0.1,10.0.1.1"; NULL: loopback without a token,
                        all addresses with one */
  const char* nics;   /* "auto", "none", or a list, "tcp:10.0.0.1,verbs:mlx5_0"; NULL: "auto" */
  const char* token;  /* the job's secret; NULL: BRAID_JOB_TOKEN, else on loopback the user's own */
  uint16_t port;      /* of the hosts; 0: any */
  int device;         /* the GPU whose memory may be registered; -1: none */
  int uses_local;     /* copies between processes of one host without a NIC */
  int64_t lease_ns;   /* a peer that says nothing for so long is lost; 1 s at least */
  int64_t timeout_ns; /* of a transfer that names none */
  uint32_t most_transfers; /* under way at once; one more is BRAID_EXHAUSTED */
  const char* cores; /* of the worker thread: "auto", those near its NICs, else its GPU, out of what
                       the calling thread may use; "off": all of these; NULL: "auto" */
} braid_engine_options;

/* Called once, on the engine's thread of callbacks: it may begin transfers, must not wait for any.
 * `message` is empty for BRAID_OK and valid during the call. */
typedef void (*braid_engine_callback)(void* context, braid_code code, const char* message);

/* What a transfer tells. Zeroes are nothing, and NULL in place of it is all zeroes. */
typedef struct braid_transfer_options {
  size_t size;       /* of this structure */
  int has_immediate; /* writes, sends and notifications only */
  uint32_t immediate;
  const void* notification; /* for the peer, behind all bytes of the transfer */
  size_t notification_bytes;
  int64_t timeout_ns; /* 0: the engine's */
  braid_engine_callback callback;
  void* context;
} braid_transfer_options;

/* Page i of the list goes from source_offset + source_ids[i] * source_stride to target_offset +
 * target_ids[i] * target_stride. */
typedef struct braid_page_list {
  size_t size; /* of this structure */
  uint64_t page_bytes;
  const uint64_t* source_ids;
  const uint64_t* target_ids;
  uint64_t count;
  uint64_t source_stride; /* 0: page_bytes */
  uint64_t target_stride;
  uint64_t source_offset;
  uint64_t target_offset;
} braid_page_list;

/* A place at which a list of pages holds: a layer of a KV cache, ours and the peer's. Offsets are added
 * to those of the list. */
typedef struct braid_page_plane {
  const braid_region* region;
  const braid_remote* remote;
  uint64_t region_offset;
  uint64_t remote_offset;
} braid_page_plane;

#define BRAID_ENGINE_MOST_PLANES 192

/* --- life --- */

BRAID_API braid_code braid_engine_defaults(braid_engine_options* options, size_t size);
/* options NULL: the defaults. BRAID_UNAVAILABLE: no token, a host or a NIC that is not there;
 * BRAID_EXHAUSTED: the port is taken. *engine is NULL then. */
BRAID_API braid_code braid_engine_create(const braid_engine_options* options,
                                         braid_engine** engine);
/* Leaves its peers; what is under way ends as BRAID_CANCELLED. NULL is fine. Not in a callback. */
BRAID_API braid_code braid_engine_close(braid_engine* engine);
/* By which peers reach the engine: opaque bytes without a secret. *bytes says how many `out` holds
 * and gets how many there are; out NULL only asks for that. */
BRAID_API braid_code braid_engine_address(braid_engine* engine, void* out, size_t* bytes);
BRAID_API braid_code braid_engine_import_peer(braid_engine* engine, const void* address,
                                              size_t bytes, braid_peer** peer);
BRAID_API void braid_peer_free(braid_peer* peer);

/* --- memory --- */

/* Of the host (device -1) or of the engine's GPU. The memory stays the caller's, until unregister
 * or close has returned. What is read-only is read alone: a transfer that would fill it is
 * BRAID_INVALID_ARGUMENT, and so is memory that is not there, or behind the end of its file. */
BRAID_API braid_code braid_engine_register(braid_engine* engine, void* base, size_t bytes,
                                           int device, braid_region** region);
/* When it returns BRAID_OK no byte can land there any more, and the memory may be freed.
 * BRAID_INVALID_ARGUMENT while transfers of this engine use it, and of another engine's region. The
 * handle stays to be freed. */
BRAID_API braid_code braid_engine_unregister(braid_engine* engine, braid_region* region,
                                             int64_t timeout_ns);
/* Frees the handle alone: memory that was not unregistered stays registered. */
BRAID_API void braid_region_free(braid_region* region);
/* The region for peers; `out` and `bytes` as in braid_engine_address(). BRAID_INVALID_ARGUMENT: it
 * was unregistered, or is another engine's. */
BRAID_API braid_code braid_engine_descriptor(braid_engine* engine, const braid_region* region,
                                             void* out, size_t* bytes);
/* BRAID_INVALID_ARGUMENT: cut, altered, another version, or of another job. */
BRAID_API braid_code braid_engine_import(braid_engine* engine, const void* descriptor, size_t bytes,
                                         braid_remote** remote);
BRAID_API uint64_t braid_remote_bytes(const braid_remote* remote); /* 0 for NULL */
BRAID_API void braid_remote_free(braid_remote* remote);

/* --- transfers: `ticket` may be NULL for who does not look --- */

BRAID_API braid_code braid_engine_write(braid_engine* engine, const braid_region* source,
                                        uint64_t source_offset, const braid_remote* target,
                                        uint64_t target_offset, uint64_t bytes,
                                        const braid_transfer_options* options,
                                        braid_ticket** ticket);
BRAID_API braid_code braid_engine_read(braid_engine* engine, const braid_region* target,
                                       uint64_t target_offset, const braid_remote* source,
                                       uint64_t source_offset, uint64_t bytes,
                                       const braid_transfer_options* options,
                                       braid_ticket** ticket);
BRAID_API braid_code braid_engine_write_pages(braid_engine* engine, const braid_region* source,
                                              const braid_remote* target,
                                              const braid_page_list* pages,
                                              const braid_transfer_options* options,
                                              braid_ticket** ticket);
BRAID_API braid_code braid_engine_read_pages(braid_engine* engine, const braid_region* target,
                                             const braid_remote* source,
                                             const braid_page_list* pages,
                                             const braid_transfer_options* options,
                                             braid_ticket** ticket);
/* The same pages of several planes in one transfer: each page of each plane counts, behind all bytes. At
 * most BRAID_ENGINE_MOST_PLANES, all with one peer; the regions are all of the host or all of the GPU,
 * and so are the remotes. BRAID_INVALID_ARGUMENT names the plane that is wrong. */
BRAID_API braid_code braid_engine_write_planes(braid_engine* engine, const braid_page_plane* planes,
                                               size_t num_planes, const braid_page_list* pages,
                                               const braid_transfer_options* options,
                                               braid_ticket** ticket);
BRAID_API braid_code braid_engine_read_planes(braid_engine* engine, const braid_page_plane* planes,
                                              size_t num_planes, const braid_page_list* pages,
                                              const braid_transfer_options* options,
                                              braid_ticket** ticket);
/* Adds one to the immediate's count at the peer; of the options timeout and callback. */
BRAID_API braid_code braid_engine_signal(braid_engine* engine, const braid_peer* peer,
                                         uint32_t immediate, const braid_transfer_options* options,
                                         braid_ticket** ticket);
/* At most BRAID_ENGINE_MOST_MESSAGE_BYTES, in order, for the peer's recv; notify for its
 * notifications. Of the options not the notification. */
BRAID_API braid_code braid_engine_send(braid_engine* engine, const braid_peer* peer,
                                       const void* message, size_t bytes,
                                       const braid_transfer_options* options,
                                       braid_ticket** ticket);
BRAID_API braid_code braid_engine_notify(braid_engine* engine, const braid_peer* peer,
                                         const void* message, size_t bytes,
                                         const braid_transfer_options* options,
                                         braid_ticket** ticket);
/* Takes our transfers to the peer back, as braid_engine_cancel() does, then ends the connection:
   after a second of waiting for them at the latest. */
BRAID_API braid_code braid_engine_disconnect(braid_engine* engine, const braid_peer* peer);

/* --- what arrives --- */

/* Ends when `count` more have arrived under the immediate, early ones too, and takes them off its
 * count. BRAID_INVALID_ARGUMENT when it is expected already. `flag`, where given, is 8 aligned bytes
 * that become 1 just before, of the host's memory or of the engine's GPU's (as cudaMalloc gives them;
 * BRAID_INVALID_ARGUMENT: another GPU's, or nobody's); they must stay until the ticket has ended, forgotten
 * or not. One in a GPU's memory is written by the driver: where that fails the ticket ends with
 * BRAID_DRIVER. A kernel that waits for it loads it with acquire at system scope, or is enqueued behind
 * cuStreamWaitValue64. */
BRAID_API braid_code braid_engine_expect(braid_engine* engine, uint32_t immediate, uint64_t count,
                                         uint64_t* flag, braid_engine_callback callback,
                                         void* context, braid_ticket** ticket);
/* The expectation ends as BRAID_CANCELLED; what has arrived stays counted. */
BRAID_API braid_code braid_engine_forget(braid_engine* engine, uint32_t immediate);
/* The same, and what has arrived is not counted any more: for an immediate that is not used again. */
BRAID_API braid_code braid_engine_discard(braid_engine* engine, uint32_t immediate);
BRAID_API braid_code braid_engine_count(braid_engine* engine, uint32_t immediate, uint64_t* count);
/* The next message or notification. `out` holds BRAID_ENGINE_MOST_MESSAGE_BYTES; *bytes gets how
 * many came. BRAID_TIMEOUT: none came; a timeout below 0 waits for as long as it takes. */
BRAID_API braid_code braid_engine_recv(braid_engine* engine, int64_t timeout_ns, void* out,
                                       size_t* bytes);
BRAID_API braid_code braid_engine_take_notification(braid_engine* engine, int64_t timeout_ns,
                                                    void* out, size_t* bytes);

/* --- tickets --- */

/* How it ended, or BRAID_TIMEOUT when the wait is over first (then braid_ticket_done() is 0). A
 * timeout below 0 waits for as long as it takes: a transfer has its own deadline. */
BRAID_API braid_code braid_ticket_wait(const braid_ticket* ticket, int64_t timeout_ns);
/* 1: it has ended, well or not. */
BRAID_API int braid_ticket_done(const braid_ticket* ticket);
/* Takes it back and does not wait: it ends as BRAID_CANCELLED, or as it would have when that is too
 * late. */
BRAID_API braid_code braid_engine_cancel(braid_engine* engine, const braid_ticket* ticket);
/* Ends nothing but the handle. */
BRAID_API void braid_ticket_free(braid_ticket* ticket);

/* --- sight --- */

/* Where the worker runs, then a line for every connection, as text with a final zero, which *bytes
 * counts too. */
BRAID_API braid_code braid_engine_health(braid_engine* engine, char* out, size_t* bytes);

#ifdef __cplusplus
}
#endif

#endif /* BRAID_ENGINE_H_ */
