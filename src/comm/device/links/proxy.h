// Proxy: the thread that drives a GPU's mirrors (transport/rdma/mirror.h). Kernels tell it nothing:
// it looks at their counters, without pause while slots move and every 50 us when none did for a
// while, so that a replayed graph needs no call of the host.
//
// Threads: owns one, from begin() on; stops and joins in stop() or the destructor. What the mirrors say of
// themselves may be read by any.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "base/status.h"
#include "transport/rdma/mirror.h"

namespace braid::comm {

class Proxy {
 public:
  explicit Proxy(std::unique_ptr<transport::rdma::Mirrors> mirrors)
      : mirrors_(std::move(mirrors)) {}
  ~Proxy() { stop(); }
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  /// Once. exhausted: the system has no thread left.
  Status begin();
  void stop();
  const transport::rdma::Mirrors& mirrors() const { return *mirrors_; }

 private:
  void run();

  std::unique_ptr<transport::rdma::Mirrors> mirrors_;
  std::atomic<bool> must_stop_{false};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace braid::comm
