// The lane over a fabric that reorders, delays, repeats, loses and resets. Two ranks are connected
// as threads and then driven by one thread, so that a seed tells (but for the pauses of asking
// again) the whole story.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/sanitizer.h"
#include "sys/fabric/fake.h"
#include "transport/rdma/rdma_ranks.h"

namespace braid::transport::rdma {
namespace {

using namespace braid::literals;
using sys::FakeFault;

RdmaLaneOptions fake_options(int rank, uint32_t depth = 6) {
  RdmaLaneOptions o;
  o.name = "rdma:fake";
  o.provider = "fake";
  o.address = "rank" + std::to_string(rank);
  o.slot_bytes = 500;
  o.depth_pieces = depth;
  return o;
}

/// Connected lanes in rank order.
std::vector<std::unique_ptr<RdmaLane>> connect_all(sys::FakeFabric& fabric, int size,
                                                   uint32_t depth = 6) {
  std::vector<std::unique_ptr<RdmaLane>> lanes(size);
  test::run_thread_ranks(size, [&](group::Group& group) {
    const int r = group.rank();
    auto lane = connect(fabric, group, fake_options(r, depth), Deadline::after_ns(10_s));
    ASSERT_TRUE(lane.ok()) << lane.status().to_string();
    lanes[r] = std::move(lane).value();
  });
  return lanes;
}

/// Both directions at once until everything is acked; what went wrong, or "".
std::string exchange_all(std::vector<std::unique_ptr<RdmaLane>>& lanes, uint64_t count,
                         int64_t timeout_ns = 20_s) {
  Stream a(*lanes[0], 0, 1, count), b(*lanes[1], 1, 0, count);
  const Deadline deadline = Deadline::after_ns(timeout_ns);
  while (!(a.done() && b.done()) && a.trouble().empty() && b.trouble().empty()) {
    if (deadline.passed())
      return fmt::format("late: 0 sent {} got {}, 1 sent {} got {}; {} {}", a.sent(), a.received(),
                         b.sent(), b.received(), lanes[0]->health(1).to_string(),
                         lanes[1]->health(0).to_string());
    a.step();
    b.step();
  }
  return a.trouble() + b.trouble();
}

TEST(RdmaFaults, ReorderedDelayedAndRepeatedWritesAreShownOnceAndInOrder) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    sys::FakeFabric fabric(
        {.seed = seed, .reorder_window = 8, .max_delay_polls = 20, .duplicate_percent = 30});
    auto lanes = connect_all(fabric, 2, 1 + seed % 9);
    EXPECT_EQ(exchange_all(lanes, 200), "") << "seed " << seed;
    EXPECT_EQ(lanes[0]->life(1) + lanes[1]->life(0), 0u);
    EXPECT_EQ(fabric.num_refused(), 0u);
  }
}

TEST(RdmaFaults, BusyFabricOnlyDelays) {
  sys::FakeFabric fabric({.seed = 5, .busy_percent = 70});
  auto lanes = connect_all(fabric, 2);
  EXPECT_EQ(exchange_all(lanes, 300), "");
}

TEST(RdmaFaults, ResetAtAnyWriteIsHealed) {
  for (uint64_t k = 0; k < 40; ++k) {
    sys::FakeFabric fabric({.seed = k, .reorder_window = 4, .max_delay_polls = 8});
    auto lanes = connect_all(fabric, 2);
    fabric.inject(k % 2 ? "rank0" : "rank1", k, FakeFault::kReset);
    EXPECT_EQ(exchange_all(lanes, 60), "") << "reset at write " << k;
    EXPECT_TRUE(lanes[0]->health(1).ok());
    EXPECT_TRUE(lanes[1]->health(0).ok());
  }
}

TEST(RdmaFaults, ZombieWritesOfAnOldLifeTouchNothing) {
  for (uint64_t k = 0; k < (kIsSanitized ? 5 : 20); ++k) {  // computes, in one thread
    sys::FakeFabric fabric(
        {.seed = k, .reorder_window = 4, .max_delay_polls = 8, .duplicate_percent = 10});
    auto lanes = connect_all(fabric, 2);
    fabric.inject("rank0", 5 + k, FakeFault::kZombie);
    // Enough traffic that the zombies, some thousand polls late, land in the midst of it.
    EXPECT_EQ(exchange_all(lanes, 8000), "") << "zombies from write " << 5 + k;
    EXPECT_GE(lanes[0]->life(1) + lanes[1]->life(0), 1u) << "the fault must have struck";
  }
}

TEST(RdmaFaults, WritesThatVanishWithSuccessAreFoundMissingAndSentAgain) {
  sys::FakeFabric fabric({.seed = 3, .reorder_window = 3});
  auto lanes = connect_all(fabric, 2);
  for (const uint64_t k : {4, 5, 9, 14}) fabric.inject("rank0", k, FakeFault::kDrop);
  fabric.inject("rank1", 7, FakeFault::kDrop);
  EXPECT_EQ(exchange_all(lanes, 100), "");
  EXPECT_GE(lanes[0]->life(1) + lanes[1]->life(0), 1u);
}

TEST(RdmaFaults, CompletionsThatNeverComeFreeNothingAndStopNothing) {
  sys::FakeFabric fabric;
  auto lanes = connect_all(fabric, 2);
  for (uint64_t k = 0; k < 100; k += 3) fabric.inject("rank0", k, FakeFault::kMute);
  EXPECT_EQ(exchange_all(lanes, 100), "");
  EXPECT_EQ(lanes[0]->life(1), 0u);
}

TEST(RdmaFaults, PathThatFailsTooOftenIsDeadAndSaysSo) {
  sys::FakeFabric fabric;
  auto lanes = connect_all(fabric, 2);
  const std::byte payload[4] = {};
  const Deadline deadline = Deadline::after_ns(20_s);
  const auto settle = [&] {  // until all is quiet, or the path is dead
    for (int quiet = 0; quiet < 50 && !deadline.passed();) {
      bool moved = lanes[0]->progress();
      moved |= lanes[1]->progress();
      quiet = moved || lanes[0]->health(1).code() != Code::kOk ? 0 : quiet + 1;
    }
  };
  for (uint32_t failure = 0; failure <= kMaxLife; ++failure) {
    EXPECT_EQ(lanes[0]->life(1), failure);
    fabric.inject("rank0", 0, FakeFault::kReset);
    ASSERT_EQ(lanes[0]->try_put(PeerSet::only(1), {}, payload), PutResult::kAccepted);
    lanes[0]->progress();
    EXPECT_EQ(lanes[0]->health(1).code(), Code::kDriver);
    EXPECT_EQ(lanes[0]->try_put(PeerSet::only(1), {}, payload), PutResult::kDown);
    EXPECT_NE(lanes[0]->health(1).message().find("injected reset"), std::string::npos);
    if (failure < kMaxLife) settle();
    if (lanes[1]->available(0) > 0) lanes[1]->release(0, lanes[1]->available(0));
    if (failure < kMaxLife) settle();
  }
  EXPECT_NE(lanes[0]->health(1).message().find("rank 1 is closed for good: it failed 16 times"),
            std::string::npos)
      << lanes[0]->health(1).message();
  for (const Deadline end = Deadline::after_ns(100_ms); !end.passed();)
    lanes[0]->progress(), lanes[1]->progress();
  EXPECT_FALSE(lanes[0]->health(1).ok());
  uint64_t unacked = 0;
  lanes[0]->for_each_unacked(1, [&](const Arrival&) { ++unacked; });
  EXPECT_EQ(unacked, lanes[0]->posted(1) - lanes[0]->acked(1))
      << "pieces stay readable on a dead path";
}

TEST(RdmaFaults, CutLinkKeepsPiecesReadableAndLeavesOtherPeersAlone) {
  sys::FakeFabric fabric;
  auto lanes = connect_all(fabric, 3);
  fabric.cut("rank0", "rank1");
  const std::byte payload[3] = {std::byte{7}, std::byte{8}, std::byte{9}};
  for (uint64_t i = 0; i < 6; ++i)
    ASSERT_EQ(lanes[0]->try_put(PeerSet::only(1), PieceTag{{i, 1, 2, 3}}, payload),
              PutResult::kAccepted);
  EXPECT_EQ(lanes[0]->try_put(PeerSet::only(1), {}, payload), PutResult::kFull);
  EXPECT_EQ(lanes[0]->try_put(PeerSet::only(1).with(2), {}, payload), PutResult::kFull);
  EXPECT_EQ(lanes[0]->posted(2), 0u) << "all or none";

  Stream to2(*lanes[0], 0, 2, 100), to0(*lanes[2], 2, 0, 100);
  const Deadline deadline = Deadline::after_ns(10_s);
  while (!(to2.done() && to0.done()) && !deadline.passed())
    to2.step(), to0.step(), lanes[1]->progress();
  EXPECT_TRUE(to2.done() && to0.done()) << to2.trouble() << to0.trouble();

  uint64_t next = 0;
  lanes[0]->for_each_unacked(1, [&](const Arrival& a) {
    EXPECT_EQ(a.tag, (PieceTag{{next++, 1, 2, 3}}));
    ASSERT_EQ(a.payload.size(), 3u);
    EXPECT_EQ(a.payload[2], std::byte{9});
  });
  EXPECT_EQ(next, 6u);
  EXPECT_EQ(lanes[0]->acked(1), 0u);

  fabric.mend("rank0", "rank1");
  while (lanes[1]->available(0) < 6 && !deadline.passed())
    for (auto& lane : lanes) lane->progress();
  ASSERT_EQ(lanes[1]->available(0), 6u);
  for (uint64_t i = 0; i < 6; ++i)
    EXPECT_EQ(lanes[1]->at(0, static_cast<uint32_t>(i)).tag.words[0], i);
  EXPECT_EQ(lanes[0]->acked(1), 0u) << "arrived is not released";
  lanes[1]->release(0, 6);
  while (lanes[0]->acked(1) < 6 && !deadline.passed())
    for (auto& lane : lanes) lane->progress();
  EXPECT_EQ(lanes[0]->acked(1), 6u);
  EXPECT_EQ(lanes[0]->life(1), 0u) << "a cut needs no new life";
}

TEST(RdmaFaults, SlowReceiverIsNotTakenForALostPiece) {
  sys::FakeFabric fabric;
  auto lanes = connect_all(fabric, 2);
  const std::byte payload[1] = {};
  for (int i = 0; i < 3; ++i)
    ASSERT_EQ(lanes[0]->try_put(PeerSet::only(1), {}, payload), PutResult::kAccepted);
  for (const Deadline end = Deadline::after_ns(2500_ms); !end.passed();) {
    lanes[0]->progress();
    lanes[1]->progress();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  EXPECT_EQ(lanes[1]->available(0), 3u);
  EXPECT_EQ(lanes[0]->life(1), 0u);
  EXPECT_TRUE(lanes[0]->health(1).ok());
}

// Closes a lane that is owed an ack, and says how long its end took once the ack was given.
int64_t end_ns(bool is_fearful) {
  sys::FakeFabric fabric({.fears_late_arrivals = is_fearful});
  auto lanes = connect_all(fabric, 2);
  for (auto& lane : lanes)
    for (const Deadline end = Deadline::after_ns(10_ms); !end.passed();) lane->progress();
  const std::byte payload[1] = {};
  EXPECT_EQ(lanes[0]->try_put(PeerSet::only(1), {}, payload), PutResult::kAccepted);
  const Deadline limit = Deadline::after_ns(10_s);
  while (lanes[1]->available(0) == 0 && !limit.passed())
    for (auto& lane : lanes) lane->progress();
  EXPECT_EQ(lanes[1]->available(0), 1u);
  std::atomic<bool> is_closed{false};
  std::thread closing([&] {
    lanes[0].reset();
    is_closed = true;
  });
  for (const Deadline end = Deadline::after_ns(50_ms); !end.passed();) lanes[1]->progress();
  while (!is_fearful && !is_closed && !limit.passed()) lanes[1]->progress();
  EXPECT_EQ(is_closed, !is_fearful);
  const int64_t began_ns = now_ns();
  lanes[1]->release(0, 1);
  while (!is_closed && !limit.passed()) lanes[1]->progress();
  closing.join();
  return now_ns() - began_ns;
}

// Where an ack that comes while a lane closes can end the process, the lane waits for it; elsewhere not.
TEST(RdmaFaults, AFearfulEndWaitsForTheLastAcks) {
  for (const bool is_fearful : {false, true}) {
    int64_t shortest_ns = INT64_MAX;
    for (int i = 0; i < 10 && shortest_ns > 300_ms; ++i)  // beside other programs some are long
      shortest_ns = std::min(shortest_ns, end_ns(is_fearful));
    EXPECT_LT(shortest_ns, 300_ms) << "it waited on";
  }
}

// ... but not for ever.
TEST(RdmaFaults, AFearfulEndLeavesAPeerThatNeverAcks) {
  sys::FakeFabric fabric({.fears_late_arrivals = true});
  auto lanes = connect_all(fabric, 2);
  const std::byte payload[1] = {};
  ASSERT_EQ(lanes[0]->try_put(PeerSet::only(1), {}, payload), PutResult::kAccepted);
  const int64_t began_ns = now_ns();
  lanes[0].reset();
  EXPECT_LT(now_ns() - began_ns, 5'000'000'000);
}

TEST(RdmaFaults, EveryRankLearnsWhichRankCouldNotOpenAndWhy) {
  sys::FakeFabric fabric;
  fabric.forbid("rank2");
  test::run_thread_ranks(3, [&](group::Group& group) {
    const auto lane = connect(fabric, group, fake_options(group.rank()), Deadline::after_ns(10_s));
    EXPECT_EQ(lane.status().code(), Code::kUnavailable);
    EXPECT_EQ(lane.status().message(), "rank 2: fake fabric: no interface at rank2");
  });
}

TEST(RdmaFaults, DifferentShapesAreRefusedOnEveryRank) {
  sys::FakeFabric fabric;
  test::run_thread_ranks(2, [&](group::Group& group) {
    const auto lane = connect(fabric, group, fake_options(group.rank(), 4 + group.rank()),
                              Deadline::after_ns(10_s));
    EXPECT_EQ(lane.status().code(), Code::kInvalidArgument);
    EXPECT_NE(lane.status().message().find("slots of 500 bytes"), std::string::npos)
        << lane.status().message();
  });
}

TEST(RdmaFaults, PeerThatCannotBeReachedIsNamedOnEveryRank) {
  sys::FakeFabric fabric;
  for (uint64_t k = 0; k < 2000; ++k) fabric.inject("rank1", k, FakeFault::kDrop);
  test::run_thread_ranks(2, [&](group::Group& group) {
    const auto lane =
        connect(fabric, group, fake_options(group.rank()), Deadline::after_ns(600_ms));
    EXPECT_EQ(lane.status().code(), Code::kTimeout);
    EXPECT_NE(lane.status().message().find("rank 1 was not heard"), std::string::npos)
        << lane.status().message();
  });
}

TEST(RdmaFaults, BadWritesIntoARingShowNothing) {
  sys::FakeFabric fabric;
  auto lanes = connect_all(fabric, 3);
  // Rank 1's own next write, with a header that says another sequence: a rogue endpoint knows the
  // ring of rank 0.
  const RemoteEndpoint remote = lanes[0]->remote_endpoint_for(1);
  auto domain = fabric.open({.address = "rogue"});
  ASSERT_TRUE(domain.ok());
  auto rogue = (*domain)->open_endpoint({});
  ASSERT_TRUE(rogue.ok());
  std::vector<std::byte> junk(256, std::byte{0xFF});
  const auto source =
      (*domain)->register_memory({junk.data(), junk.size(), sys::Access::kLocalSource}, 1);
  ASSERT_TRUE(source.ok());
  const auto target = (*rogue)->add_peer(lanes[0]->endpoint_name());
  ASSERT_TRUE(target.ok());
  sys::FabricTransfer write;
  write.peer = target.value();
  write.local_region = source.value();
  write.local = junk.data();
  write.bytes = junk.size();
  write.remote_address = remote.ring.address;
  write.remote_key = remote.ring.key ^ 1;
  write.immediate = pack({Kind::kPiece, 1, 0, 0});
  sys::FabricOp op;
  ASSERT_TRUE((*rogue)->write(write, &op).ok());
  for (int i = 0; i < 10; ++i) lanes[0]->progress();
  EXPECT_EQ(fabric.num_refused(), 1u) << "a wrong key lands nothing";
  EXPECT_TRUE(lanes[0]->health(1).ok());

  write.remote_key = remote.ring.key;
  write.remote_address += header_offset(500) - 128;
  ASSERT_TRUE((*rogue)->write(write, &op).ok());
  for (int i = 0; i < 10; ++i) lanes[0]->progress();
  EXPECT_EQ(lanes[0]->available(1), 0u);
  EXPECT_EQ(lanes[0]->num_unfounded(), 1u);
  EXPECT_TRUE(lanes[0]->health(1).ok());
  EXPECT_TRUE(lanes[0]->health(2).ok());
  lanes.pop_back();
  EXPECT_EQ(exchange_all(lanes, 50), "") << "the true pieces come over it";
}

}  // namespace
}  // namespace braid::transport::rdma
