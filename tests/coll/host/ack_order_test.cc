// When acknowledgements leave a rank: before its next blocks, and before its call ends. Behind blocks
// of its next call, on one connection of a slow cable, an ack takes tens of milliseconds, and the peer
// stands in the call before for so long.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "coll/all_gather/all_gather.h"
#include "coll/all_reduce/all_reduce.h"
#include "coll/ranks.h"
#include "coll/reduce_scatter/reduce_scatter.h"
#include "comm/state.h"
#include "support/lane_over.h"

namespace braid {
namespace {

/// What a rank's lane was asked for: pieces given back and not passed on by a progress() yet.
struct Order {
  std::atomic<uint64_t> released{0}, puts{0};
  std::atomic<uint64_t> put_first{0};  // puts while some were not passed on
};

class WatchedLane final : public test::LaneOver {
 public:
  WatchedLane(std::unique_ptr<transport::Lane> lane, Order& order)
      : LaneOver(std::move(lane)), order_(order) {}

  transport::PutResult try_put(transport::PeerSet peers, const transport::PieceTag& tag,
                               std::span<const std::byte> payload) override {
    ++order_.puts;
    if (order_.released != 0) ++order_.put_first;
    return below().try_put(peers, tag, payload);
  }
  void release(int src, uint32_t count) override {
    order_.released += count;
    below().release(src, count);
  }
  bool progress() override {
    order_.released = 0;
    return below().progress();
  }

 private:
  Order& order_;
};

/// The calls of one rank, one after the other; its lanes are watched from the first on.
void expect_order(comm::Comm& comm, const std::function<Status(comm::Comm&)>& call) {
  Order order;
  comm::Comm::State& state = comm.state();
  test::put_over_lanes<WatchedLane>(comm, order);
  for (int number = 0; number < 20; ++number) {
    const Status status = call(comm);
    // The keeper takes nothing before that lock is free, but may have had it in between.
    const std::lock_guard lock(state.mutex);
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(order.released, 0U) << "rank " << comm.rank() << ": call " << number
                                  << " ended with acknowledgements that it kept";
  }
  EXPECT_EQ(order.put_first, 0U) << "rank " << comm.rank() << ": of " << order.puts
                                 << " puts so many went before acknowledgements";
  EXPECT_GT(order.puts, 0U);
  ASSERT_TRUE(comm.close().ok());  // before the order is gone
}

class AckOrder : public testing::TestWithParam<const char*> {
 protected:
  static constexpr uint64_t kCount = 40'000;
  std::vector<float> send_ = std::vector<float>(4 * kCount, 1.0F);

  void run(const std::function<Status(comm::Comm&, std::vector<float>&)>& call) const {
    const test::Options options = {{"BRAID_LINKS", GetParam()}, {"BRAID_CELL", "4KiB"}};
    test::run_comms(4, options, [&](comm::Comm& comm) {
      std::vector<float> recv(4 * kCount);
      expect_order(comm, [&](comm::Comm& each) { return call(each, recv); });
    });
  }
};

TEST_P(AckOrder, AllGather) {
  run([&](comm::Comm& comm, std::vector<float>& recv) {
    return coll::all_gather(comm, send_.data(), recv.data(), kCount, Dtype::kFloat32);
  });
}

TEST_P(AckOrder, ReduceScatter) {
  run([&](comm::Comm& comm, std::vector<float>& recv) {
    return coll::reduce_scatter(comm, send_.data(), recv.data(), kCount, Dtype::kFloat32,
                                RedOp::kSum);
  });
}

TEST_P(AckOrder, AllReduce) {
  run([&](comm::Comm& comm, std::vector<float>& recv) {
    return coll::all_reduce(comm, send_.data(), recv.data(), kCount, Dtype::kFloat32, RedOp::kSum);
  });
}

INSTANTIATE_TEST_SUITE_P(Links, AckOrder, testing::Values("shm", "staged", "shm,staged"));

}  // namespace
}  // namespace braid
