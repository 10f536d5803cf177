// The lane over real providers, ranks as threads: what arrives is what was put, once, in order,
// through many wraps.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>

#include "transport/rdma/rdma_ranks.h"

namespace braid::transport::rdma {
namespace {

using namespace braid::literals;

class RdmaProviders : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const auto library = sys::real_fabric(); !library.ok())
      GTEST_SKIP() << library.status().message();
  }
  RdmaLaneOptions options(uint32_t slot_bytes, uint32_t depth) const {
    RdmaLaneOptions o;
    o.name = std::string("rdma:") + GetParam();
    o.provider = GetParam();
    o.slot_bytes = slot_bytes;
    o.depth_pieces = depth;
    return o;
  }
};

TEST_P(RdmaProviders, PiecesArriveOnceAndInOrderThroughManyWraps) {
  run_lanes(2, options(4096, 4), [](Lane& lane, int rank) {
    Stream stream(lane, rank, 1 - rank, 500);
    EXPECT_TRUE(stream.run(20_s)) << stream.trouble();
    EXPECT_EQ(stream.trouble(), "");
  });
}

TEST_P(RdmaProviders, AllToAllOfFourRanks) {
  run_lanes(4, options(8192, 8), [](Lane& lane, int rank) {
    AllPairs pairs(lane, rank, 4, 100);
    EXPECT_TRUE(pairs.run(20_s)) << pairs.trouble();
    EXPECT_EQ(pairs.trouble(), "");
  });
}

TEST_P(RdmaProviders, OneRankAloneHasAnEmptyLane) {
  run_lanes(1, options(4096, 4), [](RdmaLane& lane, int) {
    EXPECT_FALSE(lane.progress());
    EXPECT_TRUE(lane.health(0).ok());
    EXPECT_EQ(lane.available(0), 0u);
  });
}

TEST_P(RdmaProviders, OnePutReachesManyPeers) {
  std::atomic<int> finished{0};
  run_lanes(3, options(4096, 4), [&](RdmaLane& lane, int rank) {
    const Deadline deadline = Deadline::after_ns(20_s);
    std::vector<std::byte> payload(3000, static_cast<std::byte>(rank + 1));
    ASSERT_EQ(lane.try_put(PeerSet::all_but(rank, 3),
                           PieceTag{{9, 9, 9, static_cast<uint64_t>(rank)}}, payload),
              PutResult::kAccepted);
    for (int src = 0; src < 3; ++src) {
      if (src == rank) continue;
      while (lane.available(src) == 0 && !deadline.passed()) lane.progress();
      ASSERT_EQ(lane.available(src), 1u);
      EXPECT_EQ(lane.at(src, 0).tag.words[3], static_cast<uint64_t>(src));
      ASSERT_EQ(lane.at(src, 0).payload.size(), 3000u);
      EXPECT_EQ(lane.at(src, 0).payload[2999], static_cast<std::byte>(src + 1));
      lane.release(src, 1);
    }
    for (int peer = 0; peer < 3; ++peer)
      while (peer != rank && lane.acked(peer) < 1 && !deadline.passed()) lane.progress();
    for (int peer = 0; peer < 3; ++peer) EXPECT_EQ(peer == rank ? 1 : lane.acked(peer), 1u);
    ++finished;  // who is done still owes acks, which leave when it polls
    while (finished < 3 && !deadline.passed()) lane.progress();
  });
}

TEST_P(RdmaProviders, CapsAndPollingAreAsTheyAreDescribed) {
  run_lanes(2, options(4096, 4), [](RdmaLane& lane, int) {
    EXPECT_EQ(lane.caps().max_piece_bytes, 4096u);
    EXPECT_EQ(lane.caps().depth_pieces, 4u);
    EXPECT_TRUE(lane.caps().can_lose);
    EXPECT_FALSE(lane.caps().can_multicast || lane.caps().can_ring || lane.caps().is_paced);
    EXPECT_LE(lane.next_event_ns(), now_ns() + 60'000) << "someone must poll, always";
  });
}

// Every TCP connection of the process is shut down under the lanes, as a middlebox or a reset would
// do it.
int shut_all_connections() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    sockaddr_in peer{};
    socklen_t bytes = sizeof peer;
    const bool is_connected = getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0;
    if (is_connected && peer.sin_family == AF_INET && shutdown(fd, SHUT_RDWR) == 0) ++count;
  }
  return count;
}

TEST(RdmaTcp, BrokenConnectionsAreMadeAnewAndNothingIsLostOrRepeated) {
  if (const auto library = sys::real_fabric(); !library.ok())
    GTEST_SKIP() << library.status().message();
  RdmaLaneOptions o;
  o.slot_bytes = 4096;
  run_lanes(2, o, [](RdmaLane& lane, int rank) {
    const Deadline deadline = Deadline::after_ns(25_s);
    Stream stream(lane, rank, 1 - rank, 3000);
    for (uint64_t at = 400; at <= 1600 && rank == 0; at += 400) {
      while (stream.received() < at && stream.trouble().empty() && !deadline.passed())
        if (!stream.step()) sched_yield();
      EXPECT_GT(shut_all_connections(), 0);
    }
    EXPECT_TRUE(stream.run(deadline.left_ns())) << stream.trouble();
    if (rank == 0) {
      EXPECT_GE(lane.life(1), 1u) << "the path must have broken";
    }
    EXPECT_TRUE(lane.health(1 - rank).ok()) << lane.health(1 - rank).to_string();
  });
}

TEST(RdmaTcp, AddressThatIsNotHereIsUnavailableOnEveryRank) {
  if (const auto library = sys::real_fabric(); !library.ok())
    GTEST_SKIP() << library.status().message();
  test::run_thread_ranks(2, [](group::Group& group) {
    RdmaLaneOptions o;
    o.address = group.rank() == 1 ? "203.0.113.9" : "127.0.0.1";
    const auto lane = connect_rdma(group, o, Deadline::after_ns(10_s));
    EXPECT_EQ(lane.status().code(), Code::kUnavailable) << lane.status().to_string();
    EXPECT_TRUE(lane.status().message().starts_with("rank 1: ")) << lane.status().to_string();
  });
}

TEST(RdmaTcp, ProviderThatIsNotHereIsUnavailable) {
  if (const auto library = sys::real_fabric(); !library.ok())
    GTEST_SKIP() << library.status().message();
  test::run_thread_ranks(2, [](group::Group& group) {
    RdmaLaneOptions o;
    o.provider = "carrier-pigeon";
    const auto lane = connect_rdma(group, o, Deadline::after_ns(10_s));
    EXPECT_EQ(lane.status().code(), Code::kUnavailable) << lane.status().to_string();
    EXPECT_NE(lane.status().message().find("carrier-pigeon"), std::string::npos);
  });
}

INSTANTIATE_TEST_SUITE_P(Providers, RdmaProviders, testing::Values("tcp", "shm"));

}  // namespace
}  // namespace braid::transport::rdma
