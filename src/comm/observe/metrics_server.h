// A web server of one page, for Prometheus: GET /metrics on 127.0.0.1 and nowhere else.
//
// A few connections side by side, each with a deadline, in a thread that sleeps until somebody asks.
// Any process of the host may connect: one that says nothing holds up nobody, and where there are too
// many the oldest goes. It takes no lock of a comm.
//
// Threads: owns one; stops and joins in the destructor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "sys/fd.h"
#include "sys/net/private_fd.h"
#include "sys/net/wake.h"

namespace braid::comm {

class MetricsServer {
 public:
  /// `page` is called in the server's thread. Port 0: the kernel chooses. exhausted when the port
  /// is taken, or there is no thread to be had.
  static Result<std::unique_ptr<MetricsServer>> start(uint16_t port,
                                                      std::function<std::string()> page);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  uint16_t port() const { return port_; }

 private:
  MetricsServer(sys::Fd listener, sys::Wake wake, uint16_t port, std::function<std::string()> page)
      : listener_(std::move(listener)),
        wake_(std::move(wake)),
        port_(port),
        page_(std::move(page)) {}
  /// One who asks: its request until that is whole, then what is left of the answer.
  struct Visitor {
    sys::PrivateFd socket;
    Deadline deadline;
    std::string request;
    std::string reply;
    size_t num_sent = 0;
  };

  void loop();
  /// False when it is time to stop.
  bool wait(const std::vector<Visitor>& visitors, bool accepts, Deadline until) const;
  /// False when none can be accepted now although some wait.
  bool welcome(std::vector<Visitor>& visitors) const;
  /// False when it is done with, or has gone.
  bool attend(Visitor& visitor) const;
  std::string answer(const std::string& request) const;

  // A child of a fork, which serves nothing, must not hold the port.
  const sys::PrivateFd listener_;
  const sys::Wake wake_;
  const uint16_t port_;
  const std::function<std::string()> page_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace braid::comm
