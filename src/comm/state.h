// State: the inside of a Comm, for coll/ and the balancer, grouped by who may touch what when. A
// call holds `mutex` from its first look at the lanes to its last; the keeper thread takes it only
// between calls. `health_mutex` is held for moments: health_json() must answer while a call waits.
// Whoever holds both took `mutex` first.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/balance.h"
#include "comm/comm.h"
#include "comm/keeper.h"
#include "comm/message_book.h"
#include "comm/observe/observer.h"
#include "comm/share_book.h"
#include "fabric/node_map.h"
#include "plan/table.h"
#include "transport/host/doorbell.h"

namespace braid::comm {

class Device;  // comm/device/device.h

/// Arrivals that a call looks at are tracked in one 64-bit mask per (link, source).
inline constexpr int64_t kMaxDepthPieces = 64;

/// The tag of a probe: epoch 0, before every call. Receivers release it unread.
inline constexpr transport::PieceTag kProbeTag{};

/// One link as this rank sees it now. Under Comm::State::mutex; what health_json() reads changes
/// under health_mutex as well.
struct LinkState {
  fabric::Link facts;
  std::unique_ptr<transport::Lane> lane;
  // Whom it leads to: everyone, or the others of this rank's node.
  transport::PeerSet reach = transport::PeerSet::everyone();
  // Read by health_json(). Down: stalled or failed here, not used for new pieces until it is
  // clean again.
  bool is_down = false;
  uint32_t down_count = 0;
  uint64_t resent_pieces = 0;
  std::string why;  // of the last trouble
  // By calls and the keeper alone:
  int64_t down_since_ns = 0;
  transport::PeerSet probed;  // while down: peers that were sent a probe, see probe_down_links()
};

class Comm::State {
 public:
  // Set while the comm is made; then only read, by any thread. close() ends some of them when
  // nothing uses them any longer.
  group::Identity identity;
  Config config;
  std::unique_ptr<group::Group> group;
  std::unique_ptr<Observer> observer;             // null unless an option asks for one
  std::unique_ptr<transport::Doorbell> doorbell;  // outlives the lanes: declared before them
  std::vector<std::unique_ptr<transport::Doorbell>>
      node_bells;  // its bells, for a node's own lanes
  fabric::Fabric fabric;
  // Links that lead to every rank, which plans are made of. Behind them `links` has, where ranks are
  // on several nodes, those that join one node's ranks alone: `node_link_facts`.
  std::vector<fabric::Link> link_facts;
  std::vector<fabric::Link> node_link_facts;
  // How ranks lie on nodes where collectives go in two stages; one node of all where they do not.
  fabric::NodeMap nodes;
  transport::PeerSet node_peers;  // the others of this rank's node, where nodes.has_stages()
  // More ranks than cores on this host: waiting must give the core away.
  bool is_oversubscribed = false;
  int process_id = 0;  // of the process that made it

  // Neither lock.
  std::atomic<bool> has_ended_in_peace{false};
  std::atomic<bool> is_closed{false};  // set under `mutex`, which makes it final for its holder
  std::atomic<bool> in_call{false};    // a thread is between CallGuard and its end
  std::function<Status()> interrupt;   // may be empty; set between calls, by the calling thread

  std::mutex mutex;
  // Under `mutex`.
  plan::TuningTable table;
  mutable std::map<std::pair<plan::Op, uint64_t>, plan::Plan>
      plan_cache;      // by (op, bytes), from facts and table alone
  uint64_t epoch = 0;  // of the last call begun
  Status fatal;        // set once; every later call answers it
  // Given back when memory has run out, so that there is some to say so.
  std::unique_ptr<std::byte[]> spare = std::make_unique<std::byte[]>(size_t{64} << 10);
  ShareBook book;
  plan::Shares forced;       // empty: not forced
  RunTimeBalance balance;    // rank 0
  CallReport report;         // of the last call; messages since then have counted in its links
  plan::Plan previous_plan;  // of the call whose reports the next entries bring
  bool report_is_fresh = false;
  // Partials of sums over several nodes (coll/host/node_sums.h); grows to the largest call's.
  std::unique_ptr<std::byte[]> partials;
  uint64_t partials_bytes = 0;
  MessageBook messages;
  int64_t last_call_end_ns = 0;

  std::mutex health_mutex;
  // Under `health_mutex`.
  std::vector<std::string> events;  // health and balance lines, newest last, bounded
  CallReport last_report;           // of the last collective that ended, for last_call()
  // Changed under both locks, so that either is enough to read; close(), behind which there is no
  // call, takes them away under health_mutex alone.
  std::vector<LinkState> links;    // what else LinkState has: see there
  std::shared_ptr<Device> device;  // from the first call with device memory on

  std::unique_ptr<Keeper> keeper;  // drives the lanes between calls; its thread uses all of this

  /// True in a child that was forked off after the comm was made: it must leave everything alone.
  bool is_forked() const;
  /// invalid_argument in such a child.
  Status check_process() const;
  /// `mutex`, for what is asked between calls: waits for the keeper's moments, not for a call.
  /// invalid_argument while another thread is in one, and in a fork, where nobody gives it back.
  Result<std::unique_lock<std::mutex>> lock_between_calls();
  int rank() const { return identity.rank; }
  int size() const { return identity.size; }
  /// The plan for this request with the shares that hold now (forced, decided, or planned).
  plan::Plan plan_now(const plan::Request& request) const;
  /// Shares over all links of `links` for what stays inside the node, in a call like this one;
  /// empty where no link is the node's own.
  plan::Shares node_shares(const plan::Request& request) const;
  /// Bit i set: link i leads to every rank of `peers`.
  uint64_t reach_mask(transport::PeerSet peers) const;
  /// The facts underneath the plans changed (tuning): forgets what was decided and cached on top of
  /// them.
  void plans_changed();
  /// Bit i set: link i is usable from here.
  uint64_t local_up_mask() const;
  /// Whether without this link nothing leads to some rank any more: of a link between nodes, ranks on
  /// this rank's own node may have other links, and the others none.
  bool is_last_to_somebody(int link) const;
  /// Marks a link as not usable and remembers why; a link already marked keeps its first reason.
  void mark_down(int link, const std::string& why);
  /// Tries links that are down, and clears the mark of those that proved themselves; never
  /// waits. Between calls, and in one that has a single link left.
  void probe_down_links();
  void note_event(std::string line);
  /// Releases pieces of finished calls and lets lossy lanes send their acks; true when anything
  /// moved.
  bool idle_progress();
};

/// Held for the length of a public call. A second thread, a closed comm or an earlier fatal failure
/// gives a Status.
class CallGuard {
 public:
  explicit CallGuard(Comm& comm);
  ~CallGuard();
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;
  const Status& status() const { return status_; }
  Comm::State& state() { return state_; }

 private:
  Comm::State& state_;
  Status status_;
  bool owns_ = false;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace braid::comm
