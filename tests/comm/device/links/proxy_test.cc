#include "comm/device/links/proxy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "transport/rdma/mirror_ends.h"

namespace braid::comm {
namespace {

using transport::rdma::Mirrors;

/// Two ranks, each with a proxy; this thread is the GPU of rank 0, which sends to rank 1.
class ProxyPair : public testing::Test {
 protected:
  void SetUp() override {
    auto mirrors = transport::rdma::connect_all_mirrors(fabric_, 2);
    segment_ = mirrors[0]->segment(0);
    mirror_ = mirrors[1]->segment(0);
    for (auto& each : mirrors) {
      proxies_.push_back(std::make_unique<Proxy>(std::move(each)));
      ASSERT_TRUE(proxies_.back()->begin().ok());
    }
  }
  static uint64_t& full(std::byte* segment) {
    return reinterpret_cast<pcie::RingHead*>(segment)->counters[1][0].full.value;
  }
  /// Slot `number` of the first lane of the ring for rank 1; options of three slots of 384 bytes,
  /// two lanes.
  static std::byte* slot(std::byte* segment, uint64_t number) {
    return segment + sizeof(pcie::RingHead) + (uint64_t{2} * 3 + number % 3) * uint64_t{384};
  }
  static std::byte bytes_of(uint64_t number) { return static_cast<std::byte>(number + 1); }
  void write(uint64_t number) {
    std::memset(slot(segment_, number), static_cast<int>(bytes_of(number)), 384);
    std::atomic_ref(full(segment_)).store(number + 1, std::memory_order_release);
  }
  bool arrives(uint64_t number, int64_t patience_ns) {
    const Deadline deadline = Deadline::after_ns(patience_ns);
    while (std::atomic_ref(full(mirror_)).load(std::memory_order_acquire) <= number)
      if (deadline.passed()) return false;
    const std::byte* const arrived = slot(mirror_, number);
    return std::all_of(arrived, arrived + 384, [&](std::byte b) { return b == bytes_of(number); });
  }

  // Late, so that what has left has not landed yet: an endpoint that closes loses it.
  sys::FakeFabric fabric_{sys::FakeRules{.max_delay_polls = 50}};
  std::byte* segment_ = nullptr;
  std::byte* mirror_ = nullptr;
  std::vector<std::unique_ptr<Proxy>> proxies_;
};

// Nobody tells it, neither at once nor after a pause.
TEST_F(ProxyPair, SeesWhatTheGpuHasWritten) {
  for (uint64_t number = 0; number < 3; ++number) {
    write(number);
    EXPECT_TRUE(arrives(number, 10'000'000'000)) << number;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(proxies_[0]->mirrors().status().ok());
  EXPECT_EQ(proxies_[0]->mirrors().traffic().sent_slots, 3U);
}

TEST_F(ProxyPair, MovesNothingOnceItWasStopped) {
  write(0);
  EXPECT_TRUE(arrives(0, 10'000'000'000));
  proxies_[0]->stop();
  write(1);
  EXPECT_FALSE(arrives(1, 30'000'000));
  proxies_[0]->stop();
  EXPECT_EQ(proxies_[0]->mirrors().traffic().sent_slots, 1U);
}

// What was written before the end still arrives, as long as the reader's proxy runs.
TEST_F(ProxyPair, TheLastSlotsAreSentAtTheEnd) {
  proxies_[0]->stop();
  write(0);
  write(1);
  proxies_[0].reset();
  for (uint64_t number = 0; number < 2; ++number)
    EXPECT_TRUE(arrives(number, 10'000'000'000)) << number;
}

}  // namespace
}  // namespace braid::comm
