// Stage 2 on GPUs, call by call: which samples are judged, by which bytes and times, what is
// decided of them, and from which call it holds. Ranks are driven one by one, with the times of
// their streams as the test says; whole collectives with it are in coll/device/balance_test.cc.
#include "comm/device/shares/share_balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/units.h"
#include "support/thread_group.h"
#include "sys/cuda/fake.h"

namespace braid::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kClassBytes = 4_MiB;
constexpr ShareKey kKey{plan::Op::kAllGather, 22};

/// Events are recorded at the time that the test says it is.
class ClockedCuda final : public sys::FakeCuda {
 public:
  int64_t now_ns = 0;

  Status record(sys::Event event, sys::Stream stream) override {
    times_[event.handle] = now_ns;
    return FakeCuda::record(event, stream);
  }
  Result<int64_t> elapsed_ns(sys::Event begin, sys::Event end) override {
    return times_[end.handle] - times_[begin.handle];
  }

 private:
  std::map<void*, int64_t> times_;
};

struct Times {
  int64_t base_ns, beside_ns;  // 0: nothing went there
};
constexpr Times kLateHost{100'000, 120'000};

class HostBalances : public testing::Test {
 protected:
  void open(int size, double tuned, const std::string& sample_every = "1") {
    tables_ = std::vector<ShareTable>(static_cast<size_t>(size));
    for (ShareTable& table : tables_) table.set_tuned(kKey.op, {1, 1, tuned, tuned});
    const Config config = Config::from_pairs({{"BRAID_GPU_SAMPLE", sample_every},
                                              {"BRAID_BALANCE_WINDOW", "1"},
                                              {"BRAID_TIMEOUT", "10s"}})
                              .value();
    auto hub = std::make_shared<test::ThreadHub>(size);
    balances_.resize(tables_.size());
    groups_.clear();
    for (int rank = 0; rank < size; ++rank)
      groups_.push_back(std::make_unique<test::ThreadGroup>(hub, rank));
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < tables_.size(); ++rank)
      threads.emplace_back([&, rank] {
        EXPECT_TRUE(cuda_.use_device(0).ok());
        auto made = ShareBalance::create(*groups_[rank], config, cuda_,
                                         {tables_[rank], "nvlink", "pcie"}, test::test_deadline());
        ASSERT_TRUE(made.ok()) << made.status().to_string();
        balances_[rank] = std::move(made).value();
      });
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(cuda_.use_device(0).ok());
  }
  static BalancedCall gather() { return {kKey.op, kClassBytes, kClassBytes}; }
  ShareBalance& balance(size_t rank = 0) { return *balances_[rank]; }
  uint32_t parts(size_t rank = 0) const { return tables_[rank].class_parts(kKey); }

  void begin(const BalancedCall& call, size_t rank = 0) {
    const Status status = balance(rank).begin_call(call);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  void finish(const Times& times, size_t rank = 0) {
    const auto mark = [&](CallStage stage, int64_t at_ns) {
      cuda_.now_ns = at_ns;
      EXPECT_TRUE(balance(rank).mark(stage, {}).ok());
    };
    mark(CallStage::kStart, 0);
    mark(CallStage::kBaseDone, times.base_ns);
    if (times.beside_ns > 0) mark(CallStage::kBesideDone, times.beside_ns);
    balance(rank).end_call();
  }
  void call(const Times& times, size_t rank = 0, const BalancedCall& what = gather()) {
    begin(what, rank);
    finish(times, rank);
  }
  /// What is left of a share of which the host link carried `weight` of the bytes, and was late.
  static double leveled(double share, double weight, const Times& t = kLateHost) {
    const auto late = static_cast<double>(t.beside_ns), early = static_cast<double>(t.base_ns);
    return share - 0.7 * (late - early) / (late / weight + early / (1 - weight));
  }
  static void expect_share(uint32_t parts, double share) {
    EXPECT_NEAR(parts, share * plan::kWhole, 2.0);
  }

  ClockedCuda cuda_;
  std::vector<ShareTable> tables_;
  std::vector<std::unique_ptr<test::ThreadGroup>> groups_;
  std::vector<std::unique_ptr<ShareBalance>> balances_;
};

// The sample of call 1 is looked at as call 2 begins, and what it says holds from there.
TEST_F(HostBalances, ADecisionHoldsFromTheNextCallAndIsTold) {
  open(1, 0.2);
  call(kLateHost);
  expect_share(parts(), 0.2);
  begin(gather());
  expect_share(parts(), leveled(0.2, 0.2));
  EXPECT_THAT(balance().take_log(),
              ElementsAre(HasSubstr("gpu call 2: all_gather up to 4 MiB: moved 1.9 % from pcie to "
                                    "nvlink")));
  EXPECT_TRUE(balance().take_log().empty());
  const ShareBalance::Summary summary = balance().summary();
  EXPECT_EQ(summary.calls, 2u);
  EXPECT_EQ(summary.samples, 2u);
  EXPECT_EQ(summary.windows, 1u);
  EXPECT_EQ(summary.moves, 1u);
  EXPECT_EQ(summary.trials, 0u);
  ASSERT_EQ(summary.moved.size(), 1u);
  EXPECT_EQ(summary.moved[0].now, parts());
}

// Not what the share asks for: a part of it may be used, or the host link can carry no more; and of
// several segments it is the same part.
TEST_F(HostBalances, TheBytesThatWentOverTheHostLinkCount) {
  const auto after = [&](const BalancedCall& what) {
    open(1, 0.2);
    call(kLateHost, 0, what);
    begin(what);
    return parts();
  };
  BalancedCall what = gather();
  what.used = 0.5;
  expect_share(after(what), leveled(0.2, 0.1));
  what = gather();
  what.num_segments = 3;
  expect_share(after(what), leveled(0.2, 0.2));
  what = gather();
  what.most_bytes = kClassBytes / 10;
  expect_share(after(what), leveled(0.2, 0.1));
  what.num_segments = 3;
  what.used = 0.25;  // of what it can carry, as calls are cut
  expect_share(after(what), leveled(0.2, 0.025));
}

// In the largest of the class, and in smaller ones.
TEST_F(HostBalances, CallsOfAClassCountTogether) {
  open(1, 0.2);
  BalancedCall smaller = gather();
  smaller.bytes = 3_MiB;
  call(kLateHost, 0, smaller);
  begin(gather());
  expect_share(parts(), leveled(0.2, 0.2));
  EXPECT_EQ(tables_[0].class_parts({kKey.op, 21}), tables_[0].class_parts({kKey.op, 23}));
}

TEST_F(HostBalances, TheSlowestRankOfEachLinkCounts) {
  open(2, 0.2);
  call({100'000, 110'000}, 0);
  call({90'000, 120'000}, 1);
  begin(gather(), 1);  // brings its times, and comes to call 2 before the change
  begin(gather(), 0);
  expect_share(parts(0), 0.2);
  finish({100'000, 100'000}, 0);
  finish({100'000, 100'000}, 1);
  begin(gather(), 0);
  expect_share(parts(0), leveled(0.2, 0.2));
  expect_share(parts(1), 0.2);
  begin(gather(), 1);
  EXPECT_EQ(parts(1), parts(0)) << "from the same call";
}

// Rank 1 had no times of the first sample, and never will.
TEST_F(HostBalances, ASampleThatStaysAwayHoldsUpNoOther) {
  open(2, 0.2);
  call(kLateHost, 0);
  begin(gather(), 1);
  balance(1).end_call();  // nothing was marked
  call(kLateHost, 0);
  call(kLateHost, 1);
  begin(gather(), 1);
  begin(gather(), 0);
  EXPECT_THAT(balance(0).take_log(), ElementsAre(HasSubstr("gpu call 4: ")));
}

// Rank 1 is six calls ahead, so the change holds late: calls until then are neither counted nor a
// reason to begin anew.
TEST_F(HostBalances, CallsBeforeAChangeHoldsChangeNothing) {
  open(2, 0.2);
  for (int i = 0; i < 6; ++i) call(kLateHost, 1);
  for (int i = 0; i < 6; ++i) {
    call(kLateHost, 0);
    expect_share(parts(0), 0.2);
  }
  EXPECT_THAT(balance(0).take_log(), ElementsAre(HasSubstr("gpu call 7: ")));
  EXPECT_EQ(balance(0).summary().windows, 1u);
  begin(gather(), 0);
  expect_share(parts(0), leveled(0.2, 0.2));
}

// Another tuning: what was learned of the shares before it says nothing.
TEST_F(HostBalances, BeginsAnewWhereSharesAreOthers) {
  open(1, 0.2);
  call(kLateHost);
  for (int i = 0; i < 2; ++i) call({100'000, 100'000});
  expect_share(parts(), leveled(0.2, 0.2));
  tables_[0].set_tuned(kKey.op, {1, 1, 0.3, 0.3});
  call(kLateHost);
  begin(gather());
  expect_share(parts(), leveled(0.3, 0.3));
}

// The host link gets no more of a message than tuning found, nor than it can carry.
TEST_F(HostBalances, NeverMoreThanTuningFoundOrCanBeCarried) {
  for (const uint64_t most_bytes : {kClassBytes, kClassBytes / 20}) {
    open(1, 0.1);
    BalancedCall what = gather();
    what.most_bytes = most_bytes;
    const double most = std::min(0.1, static_cast<double>(most_bytes) / kClassBytes);
    for (int i = 0; i < 300 && parts() > 0.8 * most * plan::kWhole; ++i)
      call({100'000, 104'000}, 0, what);
    ASSERT_GT(parts(), 0u);
    ASSERT_LT(parts(), most * plan::kWhole);
    for (int i = 0; i < 60; ++i) {
      call({100'000, 50'000}, 0, what);
      ASSERT_LE(parts(), most * plan::kWhole + 1) << i;
    }
    expect_share(parts(), most);
  }
}

// One call in so many of an operation and size class; of others apart.
TEST_F(HostBalances, OneInSoManyCallsOfAKindIsSampled) {
  open(1, 0.2, "4");
  BalancedCall small = gather();
  small.bytes = 1_MiB;
  const uint64_t samples[] = {2, 2, 2, 2, 4, 4, 4, 4, 6};
  for (const uint64_t expected : samples) {
    call({1, 1});
    call({1, 1}, 0, small);
    EXPECT_EQ(balance().summary().samples, expected);
  }
}

TEST_F(HostBalances, CapturedForcedAndEmptyCallsAreNotCounted) {
  open(1, 0.2);
  BalancedCall captured = gather();
  captured.is_captured = true;
  call(kLateHost, 0, captured);
  BalancedCall without = gather();
  without.op = plan::Op::kBroadcast;  // tuned to nothing
  call(kLateHost, 0, without);
  tables_[0].force(kKey.op, 0.5);
  call(kLateHost);
  tables_[0].force(kKey.op, std::nullopt);
  EXPECT_EQ(balance().summary().calls, 0u);
  EXPECT_EQ(balance().summary().samples, 0u);
  call(kLateHost);
  EXPECT_EQ(balance().summary().calls, 1u);
}

// A link that was left out is tried in one call, which is timed whatever its number, and then
// carries nothing until that was seen. After a slow one it stays out; after a fast one it comes
// back.
TEST_F(HostBalances, ATrialIsForOneCall) {
  open(1, 0.1, "2");
  for (int i = 0; i < 100 && parts() > 0; ++i) call({100'000, 130'000});
  ASSERT_EQ(parts(), 0u);
  const auto in_call = [&] { return tables_[0].parts(kKey.op, kClassBytes); };
  const auto until_trial = [&] {
    for (int i = 0; i < 5000; ++i) {
      begin(gather());
      if (in_call() != 0) break;
      finish({100'000, 0});
    }
    expect_share(in_call(), 0.02);
    EXPECT_EQ(parts(), 0u) << "the share in force is what it was";
  };
  until_trial();
  EXPECT_EQ(balance().summary().trials, 1u);
  finish({100'000, 300'000});
  EXPECT_EQ(in_call(), 0u);
  begin(gather());
  EXPECT_EQ(in_call(), 0u);
  EXPECT_EQ(parts(), 0u);
  finish({100'000, 0});
  until_trial();
  EXPECT_EQ(balance().summary().trials, 2u);
  finish({100'000, 10'000});
  EXPECT_EQ(in_call(), 0u);
  begin(gather());
  EXPECT_GT(parts(), 0u);
}

TEST_F(HostBalances, ASampleIsJudgedOnce) {
  open(1, 0.2);
  for (int i = 0; i < 5; ++i) call({100'000, 100'000});
  begin(gather());
  EXPECT_EQ(balance().summary().windows, 5u);
  EXPECT_EQ(balance().summary().moves, 0u);
}

// It is over with the next call, though nobody ended it.
TEST_F(HostBalances, ACallThatFailedOnItsWayIsOver) {
  open(1, 0.1);
  tables_[0].set_trial(kKey, 7);
  begin(gather());
  EXPECT_NE(tables_[0].parts(kKey.op, kClassBytes), 7u);
}

}  // namespace
}  // namespace braid::comm
