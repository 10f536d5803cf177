// The engine's thread: it alone has the sockets, the connections and the rails.
//
// Others hand it calls to run, and wake it. It spins while something moves or must be polled, and
// sleeps in poll(2) on its sockets else.
//
// Threads: post() any; all else the worker's own.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/source.h"
#include "engine/target.h"
#include "sys/net/wake.h"

namespace braid::engine {

class Worker {
 public:
  using Call = std::function<void(Worker&)>;

  Worker(Ground& ground, std::vector<sys::Fd> listeners, sys::Wake wake);
  ~Worker() { close(); }
  /// Leaves all peers, then ends the thread. Calls are refused from now on.
  void close();

  /// Runs `call` on the worker's thread, soon. False: it is ending.
  bool post(Call call);

  // From within a call.
  Source& source_for(const Address& target);
  Source* find_source(const Incarnation& target);
  void cancel(uint64_t transfer, const Status& why);
  void disconnect(const Incarnation& peer);
  /// `ticket` ends when nothing of any source can land in the region any more.
  void remove_region(uint64_t region, const TicketPtr& ticket);
  std::vector<std::string> describe() const;

 private:
  /// A socket that has not proved itself.
  struct Guest {
    ControlSocket socket;
    TargetHandshake handshake;
    int64_t leaves_at_ns = 0;
  };
  struct Removal {
    uint64_t region = 0;
    TicketPtr ticket;
    int64_t fence_at_ns = 0;
    uint64_t mark = 0;  // of the GPU, behind all copies that may concern it
  };

  void serve();
  bool run_calls();
  bool accept(int64_t now);
  bool greet(int64_t now);
  /// False: the guest is to go.
  bool greet(Guest& guest, int64_t now);
  std::optional<uint64_t> recall(const Introduction& asked);
  bool progress(int64_t now);
  bool converse(int64_t now);
  void tick(int64_t now);
  void tick_removals(int64_t now);
  void rest(bool moved, int64_t now);
  bool must_poll() const;
  bool is_hot(int64_t now) const;
  void sleep();
  void end();

  Ground& ground_;
  const std::vector<sys::Fd> listeners_;
  const sys::Wake wake_;
  std::mutex mutex_;
  std::vector<Call> calls_;
  bool is_ending_ = false;
  std::list<Guest> guests_;
  std::map<Incarnation, std::unique_ptr<Source>> sources_;
  std::map<SessionId, std::unique_ptr<Target>> targets_;
  std::vector<Removal> removals_;
  int64_t tick_at_ns_ = 0;
  int64_t moved_at_ns_ = 0;
  int64_t yielded_at_ns_ = 0;
  int64_t converse_at_ns_ = 0;
  int64_t accept_at_ns_ = 0;
  std::atomic<bool> is_asleep_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace braid::engine
