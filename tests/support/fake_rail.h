// Rails between threads, in host memory: for tests of what goes over them. A call is done when it
// returns, as all work of FakeCuda is. By a seed ranks come late to calls, and calls fail.
//
//   test::RailHub hub(num_nodes, seed);
//   test::FakeRail rail(hub, node);
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coll/nodes/rail.h"

namespace braid::test {

/// What the ranks of one rail share.
class RailHub {
 public:
  explicit RailHub(int num_nodes, uint64_t seed = 0, int64_t patience_ms = 10'000)
      : num_nodes_(num_nodes), seed_(seed), patience_ms_(patience_ms) {}

  int num_nodes() const { return num_nodes_; }
  uint64_t seed() const { return seed_; }

  void post(uint64_t call, int from, int to, std::string bytes) {
    const std::lock_guard lock(mutex_);
    mail_[{call, from, to}] = std::move(bytes);
    changed_.notify_all();
  }
  /// False when nobody sends it, or the rail was broken off.
  bool take(uint64_t call, int from, int to, std::string& bytes) {
    std::unique_lock lock(mutex_);
    const Letter letter{call, from, to};
    const bool is_here = changed_.wait_for(lock, std::chrono::milliseconds(patience_ms_),
                                           [&] { return is_broken_ || mail_.contains(letter); });
    if (!is_here || is_broken_) return false;
    bytes = std::move(mail_[letter]);
    mail_.erase(letter);
    return true;
  }
  void break_off() {
    const std::lock_guard lock(mutex_);
    is_broken_ = true;
    changed_.notify_all();
  }
  bool is_broken() {
    const std::lock_guard lock(mutex_);
    return is_broken_;
  }
  bool is_empty() {
    const std::lock_guard lock(mutex_);
    return mail_.empty();
  }

 private:
  using Letter = std::tuple<uint64_t, int, int>;
  const int num_nodes_;
  const uint64_t seed_;
  const int64_t patience_ms_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Letter, std::string> mail_;
  bool is_broken_ = false;
};

class FakeRail final : public coll::nodes::Rail {
 public:
  FakeRail(RailHub& hub, int node)
      : hub_(hub), node_(node), random_(hub.seed() * 31 + static_cast<uint64_t>(node)) {}

  /// The `nth` call from now on fails here, and with it the rail for everybody.
  void fail_at(uint64_t nth) { fails_at_ = num_calls_ + nth; }
  uint64_t num_calls() const { return num_calls_; }
  uint64_t sent_bytes() const { return sent_bytes_; }

  Status exchange(const coll::nodes::Passage& passage, sys::Stream /*stream*/) override {
    BRAID_RETURN_IF_ERROR(begin());
    if (passage.send_bytes > 0) send(passage.send, passage.send_bytes, passage.to);
    if (passage.recv_bytes > 0)
      BRAID_RETURN_IF_ERROR(receive(passage.recv, passage.recv_bytes, passage.from));
    return {};
  }
  Status all_gather(sys::DevicePtr own, sys::DevicePtr recv, uint64_t bytes,
                    sys::Stream /*stream*/) override {
    BRAID_RETURN_IF_ERROR(begin());
    for (int node = 0; node < hub_.num_nodes(); ++node)
      if (node != node_) send(own, bytes, node);
    for (int node = 0; node < hub_.num_nodes(); ++node) {
      const sys::DevicePtr place = recv + static_cast<uint64_t>(node) * bytes;
      if (node == node_)
        std::memmove(sys::pointer_to<void>(place), sys::pointer_to<void>(own), bytes);
      else
        BRAID_RETURN_IF_ERROR(receive(place, bytes, node));
    }
    return {};
  }
  Status error() override {
    return hub_.is_broken() ? peer_lost("fake rail: broken off") : Status();
  }
  void abort() override { hub_.break_off(); }

 private:
  Status begin() {
    if (hub_.seed() != 0 && random_() % 4 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
    if (num_calls_++ == fails_at_) {
      hub_.break_off();
      return driver_error("fake rail: call {} fails", num_calls_ - 1);
    }
    return error();
  }
  void send(sys::DevicePtr from, uint64_t bytes, int to) {
    sent_bytes_ += bytes;
    hub_.post(num_calls_, node_, to, std::string(sys::pointer_to<const char>(from), bytes));
  }
  Status receive(sys::DevicePtr to, uint64_t bytes, int from) {
    std::string came;
    if (!hub_.take(num_calls_, from, node_, came))
      return peer_lost("fake rail: node {} sends nothing", from);
    if (came.size() != bytes)
      return internal_error("fake rail: {} bytes came, asked for {}", came.size(), bytes);
    std::memcpy(sys::pointer_to<void>(to), came.data(), bytes);
    return {};
  }

  RailHub& hub_;
  const int node_;
  std::minstd_rand random_;
  uint64_t num_calls_ = 0, fails_at_ = UINT64_MAX, sent_bytes_ = 0;
};

}  // namespace braid::test
