// A stranger, who has no key and was told no nonce, sends immediates: at random, and those that would
// do harm where they were believed. Every piece arrives once and in order all the same, no path
// breaks, and what no member can have sent is counted.
#include <gtest/gtest.h>

#include <random>

#include "base/sanitizer.h"
#include "sys/fabric/fake.h"
#include "transport/rdma/mirror_ends.h"
#include "transport/rdma/rdma_ranks.h"

namespace braid::transport::rdma {
namespace {

using namespace braid::literals;

// Fewer where a check of races takes forty times as long, of one thread.
constexpr uint64_t kForged = kIsThreadSanitized ? 100'000 : 1'000'000;
constexpr int kForgedNews = kChecksPayload ? 20 : 150;

std::vector<std::unique_ptr<RdmaLane>> connect_pair(sys::FakeFabric& fabric, uint32_t depth) {
  std::vector<std::unique_ptr<RdmaLane>> lanes(2);
  test::run_thread_ranks(2, [&](group::Group& group) {
    RdmaLaneOptions o;
    o.provider = "fake";
    o.address = "rank" + std::to_string(group.rank());
    o.slot_bytes = 500;
    o.depth_pieces = depth;
    auto lane = connect(fabric, group, o, Deadline::after_ns(10_s));
    ASSERT_TRUE(lane.ok()) << lane.status().to_string();
    lanes[static_cast<size_t>(group.rank())] = std::move(lane).value();
  });
  return lanes;
}

/// What a stranger says to `rank`'s end: half of it names the other rank, this life, and a number
/// near those that are on their way.
class Stranger {
 public:
  Stranger(sys::FakeFabric& fabric, uint64_t seed) : fabric_(fabric), rng_(seed) {}
  void speak(const std::string& endpoint, int rank, uint64_t near) {
    const auto bits = static_cast<uint32_t>(rng_());
    const Immediate harm{static_cast<Kind>(rng_() % 4), 1 - rank, 0, near + rng_() % 8};
    fabric_.forge(endpoint, rng_() % 2 == 0 ? bits : pack(harm));
    ++count_;
  }
  uint64_t count() const { return count_; }

 private:
  sys::FakeFabric& fabric_;
  std::mt19937_64 rng_;
  uint64_t count_ = 0;
};

// Small rings, where one slot that is freed too early is one that is overwritten.
TEST(RdmaForged, AMillionImmediatesChangeNothing) {
  for (const uint32_t depth : {2U, 4U, 16U}) {
    sys::FakeFabric fabric({.seed = depth, .reorder_window = 3, .max_delay_polls = 4});
    auto lanes = connect_pair(fabric, depth);
    Stranger stranger(fabric, depth);
    constexpr uint64_t kPieces = 2000;
    Stream a(*lanes[0], 0, 1, kPieces), b(*lanes[1], 1, 0, kPieces);
    const Deadline deadline = Deadline::after_ns(60_s);
    while (!deadline.passed() && a.trouble().empty() && b.trouble().empty() &&
           (!(a.done() && b.done()) || stranger.count() < kForged / 3)) {
      for (int i = 0; i < 40; ++i) {
        stranger.speak(lanes[0]->endpoint_name(), 0, i % 2 == 0 ? a.received() : a.sent());
        stranger.speak(lanes[1]->endpoint_name(), 1, i % 2 == 0 ? b.received() : b.sent());
      }
      a.step();
      b.step();
    }
    EXPECT_TRUE(a.done() && b.done()) << a.trouble() << b.trouble() << ", depth " << depth;
    EXPECT_EQ(a.trouble() + b.trouble(), "");
    EXPECT_GE(stranger.count(), kForged / 3);
    for (int r = 0; r < 2; ++r) {
      const RdmaLane& lane = *lanes[static_cast<size_t>(r)];
      EXPECT_TRUE(lane.health(1 - r).ok()) << lane.health(1 - r).to_string();
      EXPECT_EQ(lane.life(1 - r), 0U) << "no path may have broken";
      EXPECT_GT(lane.num_unfounded(), kForged / 12) << "they are counted";
    }
  }
}

// An ask that was answered, and an answer that was read, lie there still: to say again that they are
// new must neither lay a ring nor find pieces missing.
TEST(RdmaForged, OldLinesAreNotReadAgain) {
  sys::FakeFabric fabric;
  auto lanes = connect_pair(fabric, 4);
  const std::byte payload[8] = {};
  fabric.inject("rank0", 0, sys::FakeFault::kReset);
  ASSERT_EQ(lanes[0]->try_put(PeerSet::only(1), {}, payload), PutResult::kAccepted);
  const auto step = [&] { lanes[0]->progress(), lanes[1]->progress(); };
  const Deadline deadline = Deadline::after_ns(10_s);
  while (lanes[0]->life(1) == 0 && !deadline.passed()) step();
  ASSERT_EQ(lanes[0]->life(1), 1U) << "asked and answered once";
  while (lanes[1]->available(0) == 0 && !deadline.passed()) step();
  // The next piece stays on its way, so that the old answer would find it missing.
  fabric.cut("rank0", "rank1");
  ASSERT_EQ(lanes[0]->try_put(PeerSet::only(1), {}, payload), PutResult::kAccepted);
  const uint64_t landed = fabric.num_landed();
  for (const Deadline end = Deadline::after_ns(1300_ms); !end.passed(); step())
    for (const uint32_t life : {0U, 1U, 2U}) {
      fabric.forge(lanes[1]->endpoint_name(), pack({Kind::kAsk, 0, life, 0}));
      fabric.forge(lanes[0]->endpoint_name(), pack({Kind::kAnswer, 1, life, 0}));
    }
  fabric.mend("rank0", "rank1");
  EXPECT_EQ(lanes[0]->life(1), 1U);
  EXPECT_TRUE(lanes[0]->health(1).ok()) << lanes[0]->health(1).to_string();
  while (lanes[1]->available(0) < 2 && !deadline.passed()) step();
  EXPECT_EQ(lanes[1]->available(0), 2U);
  EXPECT_LT(fabric.num_landed() - landed, 20U) << "nobody answers a stranger";
}

// Who greets for a rank that has not come does not make the lane believe in it.
TEST(RdmaForged, AStrangersGreetingIsNone) {
  sys::FakeFabric fabric;
  RdmaLaneOptions o;
  o.provider = "fake";
  o.address = "rank0";
  auto lane = RdmaLane::open(fabric, o, 0, 2);
  ASSERT_TRUE(lane.ok());
  o.address = "rank1";
  auto absent = RdmaLane::open(fabric, o, 1, 2);
  ASSERT_TRUE(absent.ok());
  ASSERT_TRUE((*lane)->meet(1, (*absent)->endpoint_name(), (*absent)->remote_endpoint_for(0)).ok());
  for (const Kind kind : {Kind::kPiece, Kind::kAck, Kind::kAsk, Kind::kAnswer})
    fabric.forge((*lane)->endpoint_name(), pack({kind, 1, 0, 0}));
  const Status greeted = (*lane)->greet(Deadline::after_ns(50_ms));
  EXPECT_EQ(greeted.code(), Code::kTimeout);
  EXPECT_NE(greeted.message().find("rank 1 was not heard"), std::string::npos)
      << greeted.to_string();
  EXPECT_EQ((*lane)->num_unfounded(), 4U);
}

// The same between GPUs: no slot is shown before its bytes, none is written over before it was read.
// What one end writes lands in its order, as wherever a stranger can send an immediate at all.
TEST(MirrorForged, ImmediatesChangeNothing) {
  sys::FakeFabric fabric({.max_writes_per_poll = 2});
  MirrorEnds ends = make_ends(fabric, 2, 2);
  std::mt19937_64 rng(5);
  uint64_t forged = 0;
  for (uint64_t call = 1; call <= 60; ++call) {
    for (auto& end : ends) end->begin(call, 9000 + call, call % 2 == 0);
    const Deadline deadline = Deadline::after_ns(20_s);
    while (!(ends[0]->is_done() && ends[1]->is_done()) && !deadline.passed())
      for (int r = 0; r < 2; ++r) {
        const uint64_t near = ends[static_cast<size_t>(r)]->mirrors().traffic().received_slots / 4;
        for (int i = 0; i < kForgedNews; ++i, ++forged) {
          const SlotNews harm{static_cast<Told>(rng() % 2), 1 - r, rng() % 2 == 0,
                              static_cast<int>(rng() % 2), near + rng() % 8};
          fabric.forge(ends[static_cast<size_t>(r)]->mirrors().endpoint_name(),
                       rng() % 2 == 0 ? static_cast<uint32_t>(rng()) : pack_news(harm));
        }
        ends[static_cast<size_t>(r)]->step();
      }
    for (auto& end : ends) ASSERT_EQ(end->wrong(), "") << "call " << call;
  }
  EXPECT_GT(forged, 5'000U);
  for (auto& end : ends) {
    EXPECT_TRUE(end->mirrors().status().ok()) << end->mirrors().status().to_string();
    EXPECT_GT(end->mirrors().num_unfounded(), 0U);
  }
}

}  // namespace
}  // namespace braid::transport::rdma
