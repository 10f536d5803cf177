// Comm: what one collective call needs, in one place: the group, the fabric's links with a lane on
// each, the plans, the epoch counter and the health of it all. It moves no bytes itself; coll/
// does, through the lanes.
//
// Threads: one thread at a time. CallGuard turns a second one into invalid_argument instead of
// corruption. health_json(), links_json() and broken state may be read by any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "fabric/types.h"
#include "group/group.h"
#include "plan/plan.h"
#include "transport/lane.h"

namespace braid::comm {

/// What one link did in one call, as this rank saw it.
struct LinkUse {
  uint64_t sent_bytes = 0;      // payload accepted by the lane, a multicast counted once
  uint64_t received_bytes = 0;  // payload that arrived and was used
  int64_t finish_ns = 0;        // from the call's start to this link's last arrival; 0: none
  int64_t last_put_ns = 0;      // now_ns() when the lane accepted the last of sent_bytes; 0: none
  uint32_t resent_pieces = 0;   // pieces that had to be put again on another lane
};

struct CallReport {
  uint64_t epoch = 0;
  plan::Plan plan;
  int64_t start_ns = 0;  // now_ns()
  int64_t duration_ns = 0;
  std::vector<LinkUse> links;
};

class Observer;  // comm/observe/observer.h

class Comm {
 public:
  /// Joins the group, discovers the links that all ranks have (BRAID_LINKS), connects a lane on
  /// each, reads the tuning cache. Collective. Errors as Group::join, plus unavailable or
  /// exhausted (connect.h) when the ranks share no link.
  /// `interrupt` as set_interrupt() has it, which need not be called then.
  static Result<std::unique_ptr<Comm>> create(const group::Identity& identity, const Config& config,
                                              const group::Interrupt& interrupt = {});
  /// The same on a group that was joined already.
  static Result<std::unique_ptr<Comm>> create(std::unique_ptr<group::Group> group,
                                              const Config& config);
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int rank() const;
  int size() const;
  int local_rank() const;
  /// Where rank 0 was found: as the identity said that create() was given, whoever said it.
  const std::string& store_address() const;
  const Config& config() const;
  const fabric::Fabric& fabric() const;
  std::span<const fabric::Link> links() const;

  /// Leaves the group and frees the lanes; later calls answer invalid_argument "comm is closed".
  /// Waits up to 2 s for the others to close too, so that late acknowledgements still reach them;
  /// `say_farewell` false leaves at once, which is right when this rank has failed: peers that wait
  /// for it are told now.
  Status close(bool say_farewell = true);
  bool is_closed() const;
  /// Whether close() met all others, after which no copy of theirs can land in this rank's memory.
  bool has_ended_in_peace() const;
  /// Gives up: a call that runs, here or on another rank, ends with an error that has `why`, and
  /// none can be made any more. For a rank that must leave while its own thread is in a call. Any
  /// thread; does not wait.
  void abort(const std::string& why);

  /// The plan that the next call of this shape would use. Between calls, as force_shares():
  /// invalid_argument while another thread is in one, and in a fork.
  Result<plan::Plan> plan_for(const plan::Request& request) const;
  /// Uses these shares for every call until cleared with an empty vector; one entry per link, sum
  /// plan::kWhole. For tests, benchmarks and tuning: every rank must force the same.
  Status force_shares(const plan::Shares& shares);

  /// Asked about every millisecond while a call waits, in the caller's thread: a Status that is not
  /// ok ends the comm, whose every rank hears its message as peer_lost; less often in what ranks
  /// exchange around calls. Python looks for Ctrl-C here. Set between calls.
  void set_interrupt(std::function<Status()> interrupt);

  /// JSON: {"ok":..., "rank":..., "links":[{"name","state","down_count","resent_pieces","why"}],
  /// "events":[...]}.
  std::string health_json() const;
  /// What bytes can travel over: of host memory, in order of preference; of this rank's GPU, once a
  /// call on GPU memory was made, and none before. JSON: [{"name", "kind", "rate_gbps",
  /// "latency_ns", "source", "can_multicast"}], of a GPU with "state" and "how". Any thread.
  std::string links_json(bool on_gpu) const;
  /// The plan in words, and as JSON. Errors as plan_for().
  Result<std::string> explain_words(const plan::Request& request) const;
  Result<std::string> explain_json(const plan::Request& request) const;
  /// This comm's last calls: as a timeline that Perfetto reads (comm/observe/trace.h), and as
  /// torch's flight recorder has them (flight.h). invalid_argument unless an option has calls kept.
  /// Any thread, also while a call waits and after close().
  Result<std::string> trace_json();
  Result<std::string> flight_json();
  /// What traces, flight records and counts call this comm: alike on all ranks, "comm0" unless
  /// somebody says.
  void call_it(const std::string& name);
  /// Of a link by its place in last_call(). Plans, and links(), know those that lead to every rank;
  /// over several nodes a node's own are behind them.
  std::string link_name(size_t place) const;
  /// What the last collective that ended on this comm did; messages since then leave it as it was.
  /// Any thread, also while a call waits.
  CallReport last_call() const;
  /// What the balancers did, newest last: "epoch 812: all_gather 2^26: moved 1.2 % from staged to
  /// shm (9.8 ms vs 8.1 ms)".
  std::vector<std::string> balance_log() const;

  class State;  // for coll/ only: comm/state.h
  State& state() { return *state_; }

 private:
  explicit Comm(std::unique_ptr<State> state);
  Status closed() const;
  bool meet_for_farewell();
  Result<Observer*> settled_observer();
  std::unique_ptr<State> state_;
};

}  // namespace braid::comm
