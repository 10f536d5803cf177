// A Group whose ranks are threads of one process: exchange() and barrier() over one mutex, no
// sockets. Tests of everything below the control plane use it, and it can be told that a rank never
// arrives.
//
//   run_thread_ranks(4, [](group::Group& group) { ... });   // one thread per rank, joined before
//   it returns
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "group/group.h"

namespace braid::test {

inline Deadline test_deadline() { return Deadline::after_ns(30'000'000'000); }

/// What the ranks share: one round per exchange, numbered alike on all ranks.
class ThreadHub {
 public:
  explicit ThreadHub(int size) : size_(size) {}
  int size() const { return size_; }

  Result<std::vector<std::string>> exchange(int rank, uint64_t round_number, std::string_view topic,
                                            std::string_view blob, Deadline deadline) {
    std::unique_lock lock(mutex_);
    Round& round = rounds_[round_number];
    if (round.blobs.empty()) {
      round.blobs.resize(static_cast<size_t>(size_));
      round.topic = topic;
    }
    if (round.topic != topic)
      return invalid_argument("exchange: rank {} says topic {}, others {}", rank, topic,
                              round.topic);
    round.blobs[static_cast<size_t>(rank)] = blob;
    if (++round.arrived == size_) changed_.notify_all();
    const auto until =
        std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline.at_ns()));
    while (round.arrived < size_) {
      if (!fate_.ok()) return fate_;
      if (changed_.wait_until(lock, until) == std::cv_status::timeout && round.arrived < size_)
        return timeout("exchange {}: {} of {} ranks arrived", topic, round.arrived, size_);
    }
    return round.blobs;
  }

  void report(const Status& why) {
    const std::lock_guard lock(mutex_);
    if (fate_.ok()) fate_ = why;
    changed_.notify_all();
  }
  Status fate() const {
    const std::lock_guard lock(mutex_);
    return fate_;
  }

 private:
  struct Round {
    std::string topic;
    std::vector<std::string> blobs;
    int arrived = 0;
  };
  const int size_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Round> rounds_;
  Status fate_;
};

class ThreadGroup : public group::Group {
 public:
  ThreadGroup(std::shared_ptr<ThreadHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return hub_->size(); }
  int local_rank() const override { return rank_; }
  Result<std::vector<std::string>> exchange(std::string_view topic, std::string_view blob,
                                            Deadline deadline) override {
    return hub_->exchange(rank_, round_++, topic, blob, deadline);
  }
  Status barrier(std::string_view topic, Deadline deadline) override {
    return exchange(topic, "", deadline).status();
  }
  bool broken() const noexcept override { return !hub_->fate().ok(); }
  Status fate() const override { return hub_->fate(); }
  void report(const Status& why) override { hub_->report(why); }
  void leave() override {}

 private:
  std::shared_ptr<ThreadHub> hub_;
  const int rank_;
  uint64_t round_ = 0;
};

/// Runs `body` once per rank, each in a thread of its own, and joins them all.
inline void run_thread_ranks(int size, const std::function<void(group::Group&)>& body) {
  auto hub = std::make_shared<ThreadHub>(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&hub, &body, rank] {
      ThreadGroup group(hub, rank);
      body(group);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace braid::test
