// What all parts of one engine stand on: its settings, its secret and address, NICs and regions,
// counts, mailboxes, and the thread that runs callbacks.
//
// Threads: each part says so itself; settings, secret and address do not change.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "engine/board.h"
#include "engine/counters.h"
#include "engine/flags.h"
#include "engine/mailbox.h"
#include "engine/notifier.h"
#include "engine/regions.h"
#include "engine/secret.h"
#include "engine/stage.h"
#include "engine/turn.h"
#include "sys/host/cores.h"
#include "sys/sysfs/api.h"

namespace braid::engine {

struct EngineOptions {
  std::string name = "engine";              // in messages of peers
  std::vector<std::string> hosts;           // addresses where peers connect; empty: loopback
  uint16_t port = 0;                        // of them; 0: any
  std::string host_id;                      // BRAID_HOST_ID, for tests that act as several hosts
  std::string token;                        // the job's; empty: the user's own, on loopback alone
  std::vector<NicRequest> nics;             // empty: none, peers of this host only
  int device = -1;                          // the GPU whose memory may be registered; -1: none
  sys::Cuda* cuda = nullptr;                // null: the real one
  bool uses_local = true;                   // copies between processes of one host without a NIC
  std::string cores = "auto";               // of the worker: near its NICs; "off": as its maker's
  const sys::Sysfs* sysfs = nullptr;        // null: this machine's
  sys::Cores* affinity = nullptr;           // null: the kernel's
  int64_t lease_ns = 5'000'000'000;         // a peer that says nothing for so long is lost
  int64_t timeout_ns = 30'000'000'000;      // of a transfer that names none
  int64_t rail_silence_ns = 1'000'000'000;  // a rail whose write does not complete is given up
  uint32_t most_transfers = 16384;          // under way at once; one more is `exhausted`
  uint64_t mailbox_bytes = 64 << 20;  // of messages, and again of notifications, not taken yet
};

/// What an engine has done since it began.
struct Stats {
  std::atomic<uint64_t> transfers_begun = 0, transfers_done = 0, transfers_failed = 0;
  std::atomic<uint64_t> bytes_written = 0, bytes_read = 0;  // of ours, done
  std::atomic<uint64_t> counts_arrived = 0, messages_arrived = 0;
  std::atomic<uint64_t> pages_listed = 0, bytes_staged = 0;  // of ours, to targets of this host
  std::atomic<uint64_t> rails_fenced = 0, pieces_again = 0;
  std::atomic<uint64_t> peers_lost = 0, handshakes_refused = 0, stray_immediates = 0;
};

struct Ground {
  Ground(EngineOptions options_in, const std::string& token)
      : options(std::move(options_in)),
        secret(token),
        regions(nics, gpu),
        messages(options.mailbox_bytes),
        notifications(options.mailbox_bytes) {}

  EngineOptions options;
  Secret secret;
  Address self;
  std::vector<Nic> nics;
  std::unique_ptr<Gpu> gpu;  // null: none
  Regions regions;
  std::unique_ptr<Stage> stage;  // null until it is needed; the worker's
  bool has_no_stage = false;     // there was no memory for one
  Boards boards;
  Counters counters;
  Mailbox messages, notifications;
  Stats stats;
  std::atomic<uint32_t> num_transfers = 0;  // under way
  std::shared_ptr<Turn> turn;               // tickets hold it, too
  std::string worker_cores;                 // in words; of who has the turn
  Notifier notifier;                        // callbacks may look at all of the above
  Flags flags{*this};                       // last: its thread hands callbacks over

  TicketPtr ticket(std::string what, uint64_t id = 0, Callback callback = {}) const {
    return std::make_shared<Ticket>(std::move(what), id, std::move(callback), turn);
  }
  void finish(const TicketPtr& ticket, const Status& status) {
    if (Callback callback = ticket->finish(status))
      notifier.run([callback = std::move(callback), status] { callback(status); });
  }
  void run(Callback callback) {
    if (callback) notifier.run([callback = std::move(callback)] { callback(Status()); });
  }
  void settle(Reached reached) {
    run(std::move(reached.callback));
    if (reached.ticket != nullptr) flags.write(reached.on_gpu, reached.ticket);
  }
};

}  // namespace braid::engine
