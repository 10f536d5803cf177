// What moves an engine: the sockets, the connections and the rails, and a thread for them.
//
// All of it belongs to the thread that has the turn (turn.h): the worker's own, or one that waits
// for something of the engine, or, for the length of one call, one that calls while nobody moves
// the engine. It spins while something moves or must be polled, and else sleeps on the sockets.
// Threads: post() takes any; stand_in() the one that has just taken the turn; all else the one that
// has it.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/acceptor.h"
#include "engine/source.h"
#include "engine/target.h"
#include "engine/wake_set.h"
#include "sys/net/wake.h"

namespace braid::engine {

class Worker {
 public:
  using Call = std::function<void(Worker&)>;

  Worker(Ground& ground, std::vector<sys::PrivateFd> listeners, sys::Wake wake, WakeSet wakes);
  ~Worker() { close(); }
  /// Once. exhausted: there is no thread to be had.
  Status begin();
  /// Leaves all peers, then ends the thread. Calls are refused from now on.
  void close();

  /// Runs `call`: here and now while nobody moves the engine, else by whoever does, soon. In the order
  /// in which a thread hands them over. False: it is ending.
  bool post(Call call);
  /// Moves the engine on the thread that has taken the turn, until is_over() or the deadline. True: the
  /// worker has something to do now, and is to be called when the turn is free.
  bool stand_in(const std::function<bool()>& is_over, Deadline deadline);

  // From within a call.
  Source& source_for(const Address& target);
  void cancel(uint64_t transfer, const Status& why);
  void disconnect(const Incarnation& peer);
  /// `ticket` ends when nothing of any source can land in the region any more.
  void remove_region(uint64_t region, const TicketPtr& ticket);
  std::vector<std::string> describe() const;

 private:
  struct Removal {
    uint64_t region = 0;
    TicketPtr ticket;
    int64_t fence_at_ns = 0;
    uint64_t mark = 0;  // of the GPU, behind all copies that may concern it
  };

  // Who moves it, and when nobody needs to: worker_turn.cc.
  bool run_at_once(const Call& call);
  bool leave_turn();
  bool needs_worker();
  void serve();
  bool move_as_worker();
  bool must_poll() const;
  bool is_hot(int64_t now) const;
  bool is_pressed() const;
  bool is_tired(bool moved, int64_t now, int64_t least_spin_ns);
  bool lie_down();
  void get_up();
  int sleep_limit_ms() const;
  std::vector<pollfd> sockets() const;

  // What is done in a turn: worker.cc.
  bool round(int64_t now);
  bool run_calls();
  bool progress(int64_t now);
  void look_at_memory(int64_t now);
  bool converse(int64_t now);
  std::optional<uint64_t> recall(const Introduction& asked);
  Source* find_source(const Incarnation& target) const;
  void tick(int64_t now);
  void drop_lost();
  void tick_removals(int64_t now);
  void end();

  static constexpr int64_t kTickNs = 5'000'000;  // between two looks at beats, leases and removals
  static constexpr int64_t kMomentNs = 20'000;   // of sleep, where nothing would wake us

  Ground& ground_;
  Acceptor acceptor_;
  const sys::Wake wake_;  // wakes whoever has the turn
  WakeSet wakes_;
  std::vector<pollfd> watched_;  // what wakes_ was told last
  std::mutex mutex_;
  std::vector<Call> calls_;
  std::atomic<bool> is_ending_ = false;
  // A peer may have a source that is leaving, and another one that came after it.
  std::multimap<Incarnation, std::unique_ptr<Source>> sources_;
  std::map<SessionId, std::unique_ptr<Target>> targets_;
  std::vector<Removal> removals_;
  int64_t tick_at_ns_ = 0;
  int64_t look_at_ns_ = 0;
  int64_t moved_at_ns_ = 0;
  int64_t spin_ns_ = 0;  // how long it is worth to look on for more, by what came last
  bool was_idle_ = false;
  int64_t yielded_at_ns_ = 0;
  int64_t converse_at_ns_ = 0;
  std::atomic<bool> is_asleep_ = false;  // whoever posts a call must wake somebody
  std::thread thread_;
};

}  // namespace braid::engine
