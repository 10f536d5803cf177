// Keeper: a thread that drives the lanes while no call does. A rank that has finished its call may
// still owe its peers acknowledgements, and a network library that makes progress only when it is
// asked would keep them back until our next call. It also lets go of pieces that belong to finished
// calls (late copies over a link that came back). For a comm that is observed it also notices that
// the group broke while no call was under way, and what the GPU has done meanwhile.
//
// It takes the comm's lock only when it is free, works for some microseconds, and sleeps longer the
// longer the comm is idle: a millisecond after a call, 20 ms later on. Lanes in shared memory need
// none of this and cost one look.
//
// Threads: owns one; stops and joins in the destructor.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/comm.h"

namespace braid::comm {

class Keeper {
 public:
  /// exhausted when the system has no thread left.
  static Result<std::unique_ptr<Keeper>> start(Comm::State& state);
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

 private:
  explicit Keeper(Comm::State& state) : state_(state) {}
  void loop();
  void look_for_the_end();

  Comm::State& state_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool must_stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace braid::comm
