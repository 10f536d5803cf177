#include "sys/fabric/fake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace braid::sys {
namespace {

/// Two endpoints: a writes into b's memory.
class FakeFabricTest : public testing::Test {
 protected:
  void open(const FakeRules& rules) {
    fabric_ = std::make_unique<FakeFabric>(rules);
    domain_a_ = std::move(fabric_->open({.address = "a"})).value();
    domain_b_ = std::move(fabric_->open({.address = "b"})).value();
    a_ = std::move(domain_a_->open_endpoint({})).value();
    b_ = std::move(domain_b_->open_endpoint({})).value();
    source_region_ =
        domain_a_->register_memory({source_, sizeof source_, Access::kLocalSource}, 1).value();
    target_region_ =
        domain_b_->register_memory({target_, sizeof target_, Access::kRemoteTarget}, 2).value();
    target_address_ = target_region_->remote_address();
    peer_ = a_->add_peer(b_->name()).value();
  }
  void close() {
    a_.reset();
    b_.reset();
    domain_a_.reset();
    domain_b_.reset();
  }
  void TearDown() override {
    close();
    EXPECT_EQ(fabric_->num_open(), 0u);
  }
  /// Byte `i` of the source to byte `i` of the target, with immediate `i`.
  bool post(uint32_t i, FabricOp* op = nullptr, uint64_t key = 2, uint64_t offset = 0) {
    const FabricTransfer w{.peer = peer_,
                           .local_region = source_region_,
                           .local = source_ + i,
                           .bytes = 1,
                           .remote_address = target_address_ + i + offset,
                           .remote_key = key,
                           .immediate = i};
    const auto posted = a_->write(w, op != nullptr ? op : &op_);
    return posted.ok() && posted.value();
  }
  std::vector<FabricEvent> drain(FabricEndpoint& endpoint, int polls = 400) {
    std::vector<FabricEvent> out;
    FabricEvent events[8];
    for (int p = 0; p < polls; ++p)
      for (size_t n = endpoint.poll(events), i = 0; i < n; ++i) out.push_back(events[i]);
    return out;
  }
  std::vector<uint32_t> arrivals(int polls = 400) {
    std::vector<uint32_t> out;
    for (const FabricEvent& e : drain(*b_, polls))
      if (e.kind == FabricEvent::Kind::kArrived) out.push_back(e.immediate);
    return out;
  }

  std::byte source_[256] = {}, target_[256] = {};
  FabricOp op_;
  std::unique_ptr<FakeFabric> fabric_;
  std::unique_ptr<FabricDomain> domain_a_, domain_b_;
  std::unique_ptr<FabricEndpoint> a_, b_;
  const FabricRegion* source_region_ = nullptr;
  const FabricRegion* target_region_ = nullptr;
  uint64_t target_address_ = 0;  // stays when the region is gone
  uint64_t peer_ = 0;
};

TEST_F(FakeFabricTest, DeliversInOrderByDefaultWithTheDataBeforeTheImmediate) {
  open({});
  for (uint32_t i = 0; i < 50; ++i) {
    source_[i] = static_cast<std::byte>(i + 1);
    ASSERT_TRUE(post(i));
  }
  EXPECT_EQ(target_[0], std::byte{0}) << "nothing lands before the target polls";
  uint32_t next = 0;
  FabricEvent events[8];
  for (int p = 0; p < 200; ++p)
    for (size_t n = b_->poll(events), i = 0; i < n; ++i) {
      EXPECT_EQ(events[i].immediate, next);
      EXPECT_EQ(target_[next], static_cast<std::byte>(next + 1));
      ++next;
    }
  EXPECT_EQ(next, 50u);
  EXPECT_EQ(drain(*a_).size(), 50u) << "one completion each";
}

TEST_F(FakeFabricTest, ReordersAndDelaysBySeed) {
  std::map<uint64_t, std::vector<uint32_t>> seen;
  for (const uint64_t seed : {1, 2, 1}) {
    if (fabric_ != nullptr) close();
    open({.seed = seed, .reorder_window = 8, .max_delay_polls = 10});
    for (uint32_t i = 0; i < 60; ++i) ASSERT_TRUE(post(i));
    auto order = arrivals();
    ASSERT_EQ(order.size(), 60u);
    EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
    if (seen.count(seed) > 0) {
      EXPECT_EQ(seen[seed], order) << "the seed decides";
    }
    seen[seed] = order;
  }
  EXPECT_NE(seen[1], seen[2]);
}

TEST_F(FakeFabricTest, AnnouncesSomeTwice) {
  open({.duplicate_percent = 50});
  for (uint32_t i = 0; i < 60; ++i) ASSERT_TRUE(post(i));
  const auto all = arrivals();
  EXPECT_GT(all.size(), 70u);
  EXPECT_EQ(fabric_->num_landed(), 60u);
}

TEST_F(FakeFabricTest, RefusesWrongKeysAndBoundsWithSuccessAtTheSender) {
  open({});
  source_[3] = std::byte{9};
  ASSERT_TRUE(post(3, nullptr, 77));
  ASSERT_TRUE(post(3, nullptr, 2, 256));
  ASSERT_TRUE(post(3, nullptr, 1)) << "a key of the sender's own";
  EXPECT_TRUE(arrivals().empty());
  EXPECT_EQ(fabric_->num_refused(), 3u);
  for (const FabricEvent& e : drain(*a_)) EXPECT_EQ(e.kind, FabricEvent::Kind::kCompleted);
  domain_b_->unregister(target_region_);
  ASSERT_TRUE(post(3));
  EXPECT_TRUE(arrivals().empty());
  EXPECT_EQ(target_[3], std::byte{0});
}

TEST_F(FakeFabricTest, DropCompletesAndNeverLands) {
  open({});
  fabric_->inject("a", 1, FakeFault::kDrop);
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(post(i));
  EXPECT_EQ(arrivals(), (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(drain(*a_).size(), 3u);
}

TEST_F(FakeFabricTest, ResetFailsWhatIsOnItsWay) {
  open({});
  FabricOp ops[3];
  fabric_->inject("a", 2, FakeFault::kReset);
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(post(i, &ops[i]));
  EXPECT_TRUE(arrivals().empty());
  const auto failed = drain(*a_);
  ASSERT_EQ(failed.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(failed[i].kind, FabricEvent::Kind::kFailed);
    EXPECT_EQ(failed[i].op, &ops[i]);
    EXPECT_EQ(a_->why(failed[i]), "injected reset");
  }
}

TEST_F(FakeFabricTest, ZombiesFailAndLandLateWithTheBytesTheyLeftWith) {
  open({});
  source_[0] = std::byte{5};
  fabric_->inject("a", 0, FakeFault::kZombie);
  ASSERT_TRUE(post(0));
  source_[0] = std::byte{6};
  domain_b_->unregister(target_region_);
  EXPECT_EQ(drain(*a_).at(0).kind, FabricEvent::Kind::kFailed);
  EXPECT_TRUE(arrivals(100).empty());
  EXPECT_EQ(arrivals(5000).size(), 1u);
  EXPECT_EQ(target_[0], std::byte{5});
}

TEST_F(FakeFabricTest, MuteLandsWithoutCompletion) {
  open({});
  fabric_->inject("a", 0, FakeFault::kMute);
  ASSERT_TRUE(post(0));
  EXPECT_EQ(arrivals().size(), 1u);
  EXPECT_TRUE(drain(*a_).empty());
}

TEST_F(FakeFabricTest, CutHoldsWritesUntilMended) {
  open({});
  fabric_->cut("a", "b");
  ASSERT_TRUE(post(0));
  EXPECT_TRUE(arrivals().empty());
  fabric_->mend("a", "b");
  EXPECT_EQ(arrivals().size(), 1u);
}

TEST_F(FakeFabricTest, BusyIsNotAnError) {
  open({.busy_percent = 100});
  EXPECT_FALSE(post(0));
  EXPECT_TRUE(a_->add_peer("nobody").status().code() == Code::kDriver);
}

TEST_F(FakeFabricTest, ForbiddenAddressIsUnavailable) {
  open({});
  fabric_->forbid("c");
  EXPECT_EQ(fabric_->open({.address = "c"}).status().code(), Code::kUnavailable);
}

// ---- What a truthful fabric and a lying one say of the same loss.

TEST_F(FakeFabricTest, ATruthfulFabricNeverConfirmsWhatDidNotLand) {
  for (const bool lost_fails : {true, false}) {
    if (fabric_ != nullptr) close();
    open({.is_truthful = true, .lost_fails = lost_fails});
    EXPECT_TRUE(domain_a_->limits().is_truthful);
    fabric_->inject("a", 0, FakeFault::kDrop);
    FabricOp dropped, refused, landed;
    ASSERT_TRUE(post(0, &dropped));
    ASSERT_TRUE(post(1, &refused, 77));
    ASSERT_TRUE(post(2, &landed));
    EXPECT_EQ(arrivals(), std::vector<uint32_t>{2});
    std::map<const FabricOp*, FabricEvent::Kind> told;
    for (const FabricEvent& e : drain(*a_)) told[e.op] = e.kind;
    EXPECT_EQ(told.size(), lost_fails ? 3u : 1u);
    EXPECT_EQ(told[&landed], FabricEvent::Kind::kCompleted);
    if (!lost_fails) continue;
    EXPECT_EQ(told[&dropped], FabricEvent::Kind::kFailed);
    EXPECT_EQ(told[&refused], FabricEvent::Kind::kFailed);
  }
}

TEST_F(FakeFabricTest, FailFailsOneWriteAlone) {
  open({});
  FabricOp ops[3];
  fabric_->inject("a", 1, FakeFault::kFail);
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(post(i, &ops[i]));
  EXPECT_EQ(arrivals(), (std::vector<uint32_t>{0, 2}));
  for (const FabricEvent& e : drain(*a_)) {
    EXPECT_EQ(e.kind == FabricEvent::Kind::kFailed, e.op == &ops[1]);
    EXPECT_TRUE(e.op != &ops[1] || a_->why(e) == "injected failure");
  }
}

TEST_F(FakeFabricTest, CompletionsAreRepeatedByFaultOrByRule) {
  open({});
  fabric_->inject("a", 1, FakeFault::kRepeat);
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(post(i));
  EXPECT_EQ(arrivals().size(), 3u);
  EXPECT_EQ(drain(*a_).size(), 4u);
  close();
  open({.repeat_percent = 100});
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(post(i));
  EXPECT_EQ(arrivals().size(), 3u);
  EXPECT_EQ(drain(*a_).size(), 6u);
}

TEST_F(FakeFabricTest, AStalledDomainSaysNothingUntilItIsResumed) {
  for (const char* who : {"a", "b"}) {
    if (fabric_ != nullptr) close();
    open({});
    ASSERT_TRUE(post(0));
    fabric_->stall(who);
    ASSERT_TRUE(post(1)) << "posting goes on";
    EXPECT_TRUE(arrivals().empty()) << who;
    EXPECT_TRUE(drain(*a_).empty()) << who;
    fabric_->resume(who);
    EXPECT_EQ(arrivals(), (std::vector<uint32_t>{0, 1})) << who;
    EXPECT_EQ(drain(*a_).size(), 2u) << who;
  }
}

int64_t fake_time_ns = 0;

TEST_F(FakeFabricTest, ADomainWithARateTakesItsTime) {
  fake_time_ns = 1000;
  open({.now_ns = [] { return fake_time_ns; }});
  fabric_->set_rate("a", 0.01);  // a byte in 100 ns
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(post(i));
  for (uint32_t i = 0; i < 4; ++i) {
    fake_time_ns = 1000 + 100 * (i + 1) - 1;
    EXPECT_TRUE(arrivals().empty()) << i;
    ++fake_time_ns;
    EXPECT_EQ(arrivals(), std::vector<uint32_t>{i});
  }
}

TEST_F(FakeFabricTest, ImmediatesOfStrangersWaitWhereTheyAreTrusted) {
  open({.has_trusted_immediates = true});
  ASSERT_TRUE(post(0));
  EXPECT_TRUE(arrivals().empty()) << "b has not added a";
  ASSERT_TRUE(b_->add_peer(a_->name()).ok());
  EXPECT_EQ(arrivals(), std::vector<uint32_t>{0});
}

TEST_F(FakeFabricTest, NothingLandsThroughAClosedEndpointAndTheNextOneIsNew) {
  open({.is_truthful = true});
  FabricOp op;
  ASSERT_TRUE(post(5, &op));
  source_[5] = std::byte{9};
  b_.reset();
  b_ = std::move(domain_b_->open_endpoint({})).value();
  EXPECT_TRUE(arrivals().empty());
  EXPECT_EQ(target_[5], std::byte{0});
  const auto events = drain(*a_);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(a_->why(events[0]), "the peer's endpoint was closed");
  FabricTransfer late;
  late.peer = peer_;
  EXPECT_EQ(a_->write(late, &op).status().code(), Code::kDriver);
}

TEST_F(FakeFabricTest, WhatHasMoreWaitsForTheLastOrForAPoll) {
  open({});
  FabricTransfer t{.peer = peer_,
                   .local_region = source_region_,
                   .local = source_,
                   .bytes = 1,
                   .remote_address = target_address_,
                   .remote_key = 2,
                   .immediate = 1,
                   .has_more = true};
  ASSERT_TRUE(a_->write(t, &op_).value());
  EXPECT_TRUE(arrivals().empty());
  t.has_more = false;
  ASSERT_TRUE(a_->write(t, &op_).value());
  EXPECT_EQ(arrivals().size(), 2u);
  t.has_more = true;
  ASSERT_TRUE(a_->write(t, &op_).value());
  EXPECT_TRUE(arrivals().empty());
  drain(*a_, 1);
  EXPECT_EQ(arrivals().size(), 1u);
}

TEST_F(FakeFabricTest, AMessageThatIsTooLongIsItsReceiversFailure) {
  open({});
  FabricOp sent, received;
  ASSERT_TRUE(b_->receive({0, target_region_, target_, 4}, &received).value());
  ASSERT_TRUE(a_->send({peer_, source_region_, source_, 5}, &sent).value());
  const auto events = drain(*b_);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, FabricEvent::Kind::kFailed);
  EXPECT_EQ(events[0].op, &received);
  EXPECT_EQ(drain(*a_).at(0).kind, FabricEvent::Kind::kCompleted);
}

}  // namespace
}  // namespace braid::sys
