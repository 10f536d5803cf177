// Group with ranks as threads: exchanges, barriers, news, goodbyes. Deaths of processes are in
// death_test.cc, strangers and garbage in store_test.cc, how ranks find each other in join_test.cc.
#include "group/group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "support/ranks.h"

namespace braid::group {
namespace {

using test::run_ranks;
using test::soon;
using ::testing::HasSubstr;

constexpr auto kNap = std::chrono::milliseconds(100);

std::string blob_of(int rank, int round, size_t bytes) {
  std::string blob(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i)
    blob[i] = static_cast<char>(i * 7 + static_cast<size_t>(rank * 31 + round));
  return blob;
}

template <typename Done>
bool comes_true(Done done) {
  const Deadline deadline = soon();
  while (!done() && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return done();
}

class GroupSizes : public ::testing::TestWithParam<int> {};

TEST_P(GroupSizes, ExchangeGathersInRankOrder) {
  run_ranks(GetParam(), [](Group& group) {
    for (int round = 0; round < 20; ++round) {
      // A different length for each rank and round, empty ones too.
      const auto length = [&](int rank) {
        return static_cast<size_t>((rank * 37 + round * 101) % 500);
      };
      auto all =
          group.exchange("round", blob_of(group.rank(), round, length(group.rank())), soon());
      ASSERT_TRUE(all.ok()) << all.status().to_string();
      ASSERT_EQ(all->size(), static_cast<size_t>(group.size()));
      for (int rank = 0; rank < group.size(); ++rank)
        ASSERT_EQ((*all)[static_cast<size_t>(rank)], blob_of(rank, round, length(rank)))
            << "round " << round;
    }
    EXPECT_FALSE(group.broken());
    EXPECT_TRUE(group.fate().ok());
  });
}

TEST_P(GroupSizes, BarrierHoldsBackUntilAllCame) {
  std::atomic<int> arrived{0};
  run_ranks(GetParam(), [&](Group& group) {
    for (int round = 1; round <= 5; ++round) {
      arrived.fetch_add(1);
      ASSERT_TRUE(group.barrier("in", soon()).ok());
      EXPECT_EQ(arrived.load(), round * group.size());
      ASSERT_TRUE(group.barrier("out", soon()).ok());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, GroupSizes, ::testing::Values(1, 2, 3, 5, 16));

TEST(Group, KnowsWhoItIs) {
  run_ranks(3, [](Group& group) {
    EXPECT_EQ(group.size(), 3);
    EXPECT_EQ(group.local_rank(), group.rank());
    auto ranks = group.exchange("rank", std::to_string(group.rank()), soon());
    ASSERT_TRUE(ranks.ok());
    EXPECT_EQ((*ranks)[static_cast<size_t>(group.rank())], std::to_string(group.rank()));
  });
}

TEST(Group, BlobsOfOneMebibytePass) {
  run_ranks(3, [](Group& group) {
    for (int round = 0; round < 3; ++round) {
      auto all = group.exchange("large", blob_of(group.rank(), round, 1_MiB), soon());
      ASSERT_TRUE(all.ok()) << all.status().to_string();
      for (int rank = 0; rank < 3; ++rank)
        EXPECT_EQ((*all)[static_cast<size_t>(rank)], blob_of(rank, round, 1_MiB));
    }
  });
}

TEST(Group, LargerBlobsAndTopicsAreRefusedAndChangeNothing) {
  run_ranks(2, [](Group& group) {
    const Status blob = group.exchange("large", std::string(1_MiB + 1, 'x'), soon()).status();
    EXPECT_EQ(blob.code(), Code::kInvalidArgument);
    EXPECT_THAT(blob.message(), HasSubstr("1048577 bytes, at most 1048576"));
    EXPECT_EQ(group.barrier(std::string(257, 't'), soon()).code(), Code::kInvalidArgument);
    return group.barrier("still in step", soon());
  });
}

TEST(Group, MismatchedTopicsNameBothOnEveryRank) {
  run_ranks(3, [](Group& group) {
    const std::string topic = group.rank() == 2 ? "tune" : "links";
    const Status status = group.exchange(topic, "", soon()).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("'tune'"));
    EXPECT_THAT(status.message(), HasSubstr("'links'"));
    // A mismatch is the callers' mistake: the group lives on, and all ranks are still in step.
    return group.barrier("after", soon());
  });
}

TEST(Group, DeadlineNamesWhoDidNotCome) {
  run_ranks(4, [](Group& group) {
    if (group.rank() < 2) {
      const Status status = group.barrier("meet", Deadline::after_ns(200_ms));
      EXPECT_EQ(status.code(), Code::kTimeout);
      EXPECT_THAT(status.message(), HasSubstr("ranks 2, 3 did not come"));
    } else {
      std::this_thread::sleep_for(3 * kNap);
      // Those who come late find the parts of those who were there.
      EXPECT_TRUE(group.barrier("meet", soon()).ok());
    }
    return group.barrier("again", soon());
  });
}

TEST(Group, ReportReachesEveryRankAndTheFirstOneStays) {
  run_ranks(4, [](Group& group) {
    if (group.rank() == 2) {
      group.report(timeout("lane shm to rank 1: no ack"));
      group.report(internal_error("noise that follows"));
      EXPECT_TRUE(group.broken());
    }
    ASSERT_TRUE(comes_true([&] { return group.broken(); }));
    const Status fate = group.fate();
    EXPECT_EQ(fate.code(), Code::kTimeout);
    EXPECT_THAT(fate.message(), HasSubstr("lane shm to rank 1: no ack"));
    EXPECT_THAT(fate.message(), HasSubstr(group.rank() == 2 ? "lane" : "rank 2 failed"));
    EXPECT_EQ(group.barrier("after", soon()).code(), Code::kTimeout);
    // Nobody leaves before all have seen it: a report must not depend on its sender's staying, but
    // this test does.
    std::this_thread::sleep_for(kNap);
  });
}

TEST(Group, ReportWakesAnExchange) {
  run_ranks(3, [](Group& group) {
    if (group.rank() == 1) {
      std::this_thread::sleep_for(kNap);
      group.report(driver_error("out of luck"));
      return;
    }
    const int64_t start_ns = now_ns();
    const Status status = group.barrier("never complete", soon());
    EXPECT_EQ(status.code(), Code::kDriver);
    EXPECT_THAT(status.message(), HasSubstr("rank 1 failed: out of luck"));
    EXPECT_LT(now_ns() - start_ns, 5_s);
  });
}

TEST(Group, ALongReportIsCutNotLost) {
  run_ranks(2, [](Group& group) {
    if (group.rank() == 1) group.report(driver_error("{}", std::string(100'000, 'x')));
    ASSERT_TRUE(comes_true([&] { return group.broken(); }));
    EXPECT_EQ(group.fate().code(), Code::kDriver);
    std::this_thread::sleep_for(kNap);
  });
}

TEST(Group, LeavingHurtsNobodyUntilTheyWait) {
  run_ranks(3, [](Group& group) {
    ASSERT_TRUE(group.barrier("together", soon()).ok());
    if (group.rank() == 2) return;  // the destructor says goodbye
    ASSERT_TRUE(comes_true([&] { return group.has_left(2); }));
    EXPECT_FALSE(group.broken());
    EXPECT_TRUE(group.fate().ok());
    const Status status = group.barrier("without rank 2", soon());
    EXPECT_EQ(status.code(), Code::kPeerLost);
    EXPECT_THAT(status.message(), HasSubstr("rank 2 left"));
  });
}

TEST(Group, WhatALeavingRankSentStillCounts) {
  run_ranks(3, [](Group& group) {
    if (group.rank() != 2) std::this_thread::sleep_for(kNap);
    // Rank 2 gives up at once and goes; its part must be there for the others.
    const int64_t patience_ns = group.rank() == 2 ? 0 : 20_s;
    const Status status = group.barrier("last words", Deadline::after_ns(patience_ns));
    EXPECT_EQ(status.code(), group.rank() == 2 ? Code::kTimeout : Code::kOk) << status.to_string();
  });
}

TEST(Group, RankZeroMayLeaveFirst) {
  run_ranks(4, [](Group& group) {
    ASSERT_TRUE(group.barrier("together", soon()).ok());
    if (group.rank() == 0) return;
    ASSERT_TRUE(comes_true([&] { return group.has_left(0); }));
    std::this_thread::sleep_for(kNap);
    EXPECT_TRUE(group.fate().ok()) << group.fate().to_string();
    const Status status = group.barrier("without a store", soon());
    EXPECT_EQ(status.code(), Code::kPeerLost);
    EXPECT_THAT(status.message(), HasSubstr("rank 0 left"));
  });
}

// The last exchange's parts are on their way through the store when rank 0 returns from it and
// leaves.
TEST(Group, NothingIsLostWhenRankZeroLeavesAtOnce) {
  for (int round = 0; round < 10; ++round)
    run_ranks(4, [&](Group& group) {
      auto all = group.exchange("last", blob_of(group.rank(), round, 300'000), soon());
      EXPECT_TRUE(all.ok()) << "rank " << group.rank() << ": " << all.status().to_string();
    });
}

TEST(Group, LeaveTwiceIsFineAndEndsExchanges) {
  run_ranks(2, [](Group& group) {
    group.leave();
    group.leave();
    EXPECT_EQ(group.barrier("too late", soon()).code(), Code::kInvalidArgument);
    group.report(internal_error("too late as well"));
    EXPECT_TRUE(group.fate().ok());
  });
}

TEST(Group, ManyGroupsAtTheSameTime) {
  test::run_threads(6, [](int which) {
    run_ranks(3, [&](Group& group) {
      for (int round = 0; round < 10; ++round) {
        auto all = group.exchange("mine", std::to_string(which), soon());
        ASSERT_TRUE(all.ok()) << all.status().to_string();
        for (const auto& one : *all) EXPECT_EQ(one, std::to_string(which));
      }
    });
  });
}

TEST(LoneGroup, NeedsNoStore) {
  Identity alone;
  alone.local_rank = 3;
  auto group = Group::join(alone, Config(), Deadline::after_ns(0));
  ASSERT_TRUE(group.ok());
  EXPECT_EQ((*group)->local_rank(), 3);
  EXPECT_EQ((*group)->exchange("any", "blob", soon()).value(), std::vector<std::string>{"blob"});
  EXPECT_EQ((*group)->exchange("any", std::string(2_MiB, 'x'), soon()).status().code(),
            Code::kInvalidArgument);
  (*group)->report(driver_error("broken"));
  EXPECT_TRUE((*group)->broken());
  EXPECT_EQ((*group)->barrier("any", soon()).code(), Code::kDriver);
}

/// A group that several threads leave at once; it outlives those that never come back.
struct Leaving {
  explicit Leaving(std::unique_ptr<Group> joined) : group(std::move(joined)) {}
  std::unique_ptr<Group> group;
  std::latch all_here{2};
  std::atomic<int> num_through{0};
};

// At the end of a failed job the main thread says goodbye while a watchdog aborts. One thread was
// joined by both, and one of them waited for ever.
TEST(Group, TwoThreadsMayLeaveAtOnce) {
  for (int round = 0; round < 10; ++round) {
    const Identity job = test::draw_job(2);
    test::run_threads(2, [&](int rank) {
      auto joined = Group::join(test::as_rank(job, rank), Config(), soon());
      ASSERT_TRUE(joined.ok()) << joined.status().to_string();
      const auto leaving = std::make_shared<Leaving>(std::move(joined).value());
      std::vector<std::thread> threads;
      for (int i = 0; i < 2; ++i)
        threads.emplace_back([leaving] {
          leaving->all_here.arrive_and_wait();
          leaving->group->leave();
          ++leaving->num_through;
        });
      const bool are_through = comes_true([&] { return leaving->num_through == 2; });
      EXPECT_TRUE(are_through) << "rank " << rank;
      for (std::thread& thread : threads) are_through ? thread.join() : thread.detach();
    });
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace braid::group
