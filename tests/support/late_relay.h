// A network that takes its time, between sockets of one machine: what comes in at its port goes on to
// the target, and back, a fixed time later.
//
//   LateRelay relay(endpoint_of_the_server, 10_ms);
//   connect_to(relay.at(), ...);
//
// Threads: any; one of its own does the work.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <deque>
#include <list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "sys/net/api.h"

namespace braid::test {

class LateRelay {
 public:
  /// The first `num_mute` that connect hear nothing, ever.
  LateRelay(const sys::Endpoint& target, int64_t delay_ns, size_t num_mute = 0)
      : target_(target),
        delay_ns_(delay_ns),
        num_mute_(num_mute),
        listener_(std::move(sys::listen_on(sys::resolve("127.0.0.1", 0)->front(), 4096)).value()),
        at_(sys::local_endpoint(listener_.get()).value()),
        thread_([this] { run(); }) {}
  ~LateRelay() {
    is_over_ = true;
    thread_.join();
  }
  LateRelay(const LateRelay&) = delete;
  LateRelay& operator=(const LateRelay&) = delete;

  const sys::Endpoint& at() const { return at_; }

 private:
  struct Parcel {
    int64_t due_ns = 0;
    std::string bytes;  // none: the sender has ended
  };
  struct Pair {
    std::array<sys::Fd, 2> ends;
    std::array<std::deque<Parcel>, 2> to;  // an end
    std::array<bool, 2> has_ended{};       // what an end sends
    bool is_over = false;
  };

  void run() {
    while (!is_over_) {
      std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
      for (const Pair& pair : pairs_)
        for (size_t i = 0; i < 2; ++i)
          entries.push_back({pair.has_ended[i] ? -1 : pair.ends[i].get(), POLLIN, 0});
      (void)::poll(entries.data(), entries.size(), 1);
      size_t at = 1;
      for (Pair& pair : pairs_)
        for (size_t i = 0; i < 2; ++i)
          if (entries[at++].revents != 0) take(pair, i);
      for (Pair& pair : pairs_)
        for (size_t i = 0; i < 2; ++i) deliver(pair, i);
      std::erase_if(pairs_, [](const Pair& pair) { return pair.is_over; });
      while (entries[0].revents != 0 && accept()) {
      }
    }
  }
  bool accept() {
    auto from = sys::accept_on(listener_.get(), Deadline::after_ns(0));
    if (!from.ok()) return false;
    if (mute_.size() < num_mute_) {
      mute_.push_back(std::move(from).value());
      return true;
    }
    auto to = sys::connect_to(target_, Deadline::after_ns(5_s));
    if (!to.ok()) return true;
    pairs_.emplace_back();
    pairs_.back().ends = {std::move(from).value(), std::move(to).value()};
    return true;
  }
  void take(Pair& pair, size_t from) {
    std::string bytes(1 << 16, '\0');
    auto got = sys::recv_some(pair.ends[from].get(), std::as_writable_bytes(std::span(bytes)));
    bytes.resize(got.ok() ? *got : 0);
    if (got.ok() && bytes.empty()) return;
    pair.has_ended[from] = !got.ok();
    pair.to[1 - from].push_back({now_ns() + delay_ns_, std::move(bytes)});
  }
  void deliver(Pair& pair, size_t to) {
    std::deque<Parcel>& queue = pair.to[to];
    for (; !pair.is_over && !queue.empty() && queue.front().due_ns <= now_ns(); queue.pop_front()) {
      const std::string& bytes = queue.front().bytes;
      pair.is_over =
          bytes.empty() || !sys::send_all(pair.ends[to].get(), std::as_bytes(std::span(bytes)),
                                          Deadline::after_ns(5_s))
                                .ok();
    }
  }

  const sys::Endpoint target_;
  const int64_t delay_ns_;
  const size_t num_mute_;
  std::vector<sys::Fd> mute_;
  const sys::Fd listener_;
  const sys::Endpoint at_;
  std::list<Pair> pairs_;
  std::atomic<bool> is_over_{false};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace braid::test
