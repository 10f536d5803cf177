// Dispatches that may gather: the same bytes as routed ones, one way for all ranks, the faster one.
#include <gmock/gmock.h>

#include <set>

#include "moe/buffers.h"
#include "moe/route_tuner.h"
#include "moe/routings.h"

namespace braid::moe {
namespace {

/// Problems of one shape, two experts a rank, of any number of tokens.
reference::Problem problem_of(uint64_t seed, int n, int up_to_tokens) {
  std::mt19937_64 random(seed);
  reference::Problem p{2 * n, 3, 96, {}};
  for (int r = 0; r < n; ++r) {
    reference::Tokens tokens;
    tokens.count = static_cast<int>(random() % static_cast<uint64_t>(up_to_tokens + 1));
    tokens.rows = test::made_rows(seed, r, static_cast<uint64_t>(tokens.count) * p.row_bytes);
    for (int i = 0; i < tokens.count * p.num_topk; ++i) {
      const auto id = static_cast<int64_t>(random() % static_cast<uint64_t>(p.num_experts + 2));
      tokens.ids.push_back(id < p.num_experts ? id : -1);
      tokens.weights.push_back(static_cast<float>(random() % 100));
    }
    p.ranks.push_back(std::move(tokens));
  }
  return p;
}

void expect_result(test::Normal& call, Buffer& buffer) {
  const Status status = call.run(buffer);
  ASSERT_TRUE(status.ok()) << status.to_string();
  const auto expected = reference::by_source(call.p, buffer.rank(), 1);
  EXPECT_EQ(call.x, expected.rows);
  EXPECT_EQ(call.ids, expected.ids);
  EXPECT_EQ(call.weights, expected.weights);
  EXPECT_EQ(call.source_token, expected.source_token);
  EXPECT_EQ(call.incoming.per_expert, expected.rows_per_expert);
}

class MoeGather : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, MoeGather, testing::Values(1, 2, 4, 8));

// Windows of a few rows, and of many.
TEST_P(MoeGather, IsTheReferenceAndOneWayForAllRanks) {
  const int n = GetParam();
  constexpr int kCalls = 24;
  for (const uint64_t half_bytes : {uint64_t{2} << 10, uint64_t{64} << 10}) {
    std::mutex mutex;
    std::vector<std::set<bool>> ways(kCalls);
    test::run_buffers(n, {half_bytes * static_cast<uint64_t>(n), false}, test::config_of(),
                      [&](Buffer& buffer) {
                        buffer.set_may_gather(true);
                        for (int i = 0; i < kCalls; ++i) {
                          const auto p = problem_of(static_cast<uint64_t>(i), n, 40);
                          test::Normal call(p, buffer.rank());
                          expect_result(call, buffer);
                          const std::lock_guard lock(mutex);
                          ways[static_cast<size_t>(i)].insert(buffer.has_gathered());
                        }
                      });
    std::set<bool> all;
    for (const auto& each : ways) {
      EXPECT_EQ(each.size(), 1U);
      all.insert(each.begin(), each.end());
    }
    EXPECT_EQ(all.size(), 2U);  // both were tried
  }
}

TEST(MoeGathering, WhatARankPushesIsToldByItself) {
  test::run_buffers(4, {16 << 10, false}, test::config_of(), [&](Buffer& buffer) {
    buffer.set_may_gather(buffer.rank() != 2);
    bool has_gathered = false;
    for (uint64_t i = 0; i < 12; ++i) {
      const auto p = problem_of(i, 4, 30);
      test::Normal call(p, buffer.rank());
      expect_result(call, buffer);
      has_gathered = has_gathered || buffer.has_gathered();
    }
    EXPECT_EQ(has_gathered, buffer.rank() != 2);
  });
}

TEST(MoeGathering, Rank0Decides) {
  test::run_buffers(3, {16 << 10, false}, test::config_of(), [&](Buffer& buffer) {
    buffer.set_may_gather(buffer.rank() != 0);
    for (uint64_t i = 0; i < 12; ++i) {
      const auto p = problem_of(i, 3, 30);
      test::Normal call(p, buffer.rank());
      expect_result(call, buffer);
      EXPECT_FALSE(buffer.has_gathered());
    }
  });
}

TEST(MoeGathering, NeedsMemoryThatAllShare) {
  test::run_buffers(
      4, {16 << 10, false}, test::config_of({{"BRAID_LINKS", "rdma:tcp"}}),
      [](Buffer& buffer) {
        buffer.set_may_gather(true);
        for (uint64_t i = 0; i < 4; ++i) {
          const auto p = problem_of(i, 4, 30);
          test::Normal call(p, buffer.rank());
          expect_result(call, buffer);
          EXPECT_FALSE(buffer.has_gathered());
        }
      },
      [](int rank, Config& config) {
        ASSERT_TRUE(config.set("BRAID_HOST_ID", rank < 2 ? "one" : "two").ok());
      });
}

/// Calls of tuners of several ranks; `took_us` says what a call takes.
class Tuners {
 public:
  explicit Tuners(size_t size) : tuners_(size) {}
  /// Whether the call was gathered, the same on all ranks.
  bool call(int32_t tokens, const std::function<double(size_t rank, bool)>& took_us) {
    std::vector<uint32_t> remarks;
    for (const RouteTuner& each : tuners_) remarks.push_back(each.remark());
    const bool is_gathered = tuners_[0].gathers();
    for (size_t r = 0; r < tuners_.size(); ++r) {
      EXPECT_EQ(tuners_[r].gathers(), is_gathered);
      EXPECT_EQ(Remark::of(remarks[r]).is_gathered, is_gathered);
      tuners_[r].hear(remarks, tokens);
      tuners_[r].end(static_cast<int64_t>(1000 * took_us(r, is_gathered)));
    }
    return is_gathered;
  }
  RouteTuner& operator[](size_t rank) { return tuners_[rank]; }

 private:
  std::vector<RouteTuner> tuners_;
};

TEST(MoeRouteTuner, TheSlowestRanksTimeDecides) {
  Tuners tuners(3);
  // Gathering is faster on two ranks, and slower where it counts.
  const auto took = [](size_t rank, bool is_gathered) {
    return is_gathered ? (rank == 2 ? 30.0 : 5.0) : 20.0;
  };
  EXPECT_FALSE(tuners.call(100, took));
  EXPECT_TRUE(tuners.call(100, took));
  for (int i = 0; i < 2 * RouteTuner::kSamples; ++i) tuners.call(100, took);
  EXPECT_TRUE(tuners[0].is_settled());
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(tuners.call(100, took));
}

TEST(MoeRouteTuner, NumbersOfTokensThatDifferMuchAreJudgedApart) {
  Tuners tuners(2);
  const auto took = [](int32_t tokens) {
    return [tokens](size_t, bool is_gathered) {
      return is_gathered ? (tokens > 1000 ? 100.0 : 40.0) : (tokens > 1000 ? 300.0 : 20.0);
    };
  };
  for (int i = 0; i < 3 * RouteTuner::kSamples; ++i) tuners.call(8, took(8));
  EXPECT_FALSE(tuners.call(8, took(8)));
  for (int i = 0; i < 3 * RouteTuner::kSamples; ++i) tuners.call(4096, took(4096));
  EXPECT_TRUE(tuners.call(4096, took(4096)));
  tuners.call(8, took(8));  // these two are taken to be like those before: a word is a call behind
  tuners.call(8, took(8));
  EXPECT_FALSE(tuners.call(8, took(8)));
}

// What is not known is no sample: a call that failed, a rank that has just come to the call.
TEST(MoeRouteTuner, ACallThatSomebodyDidNotEndIsNoSample) {
  Tuners tuners(2);
  for (int i = 0; i < 40; ++i) {
    std::vector<uint32_t> remarks = {tuners[0].remark(), tuners[1].remark()};
    for (size_t r = 0; r < 2; ++r) tuners[r].hear(remarks, 10);
    tuners[0].end(1000);  // rank 1 has met an error, every time
  }
  EXPECT_FALSE(tuners[0].is_settled());
  tuners[1].hear(std::vector<uint32_t>{}, 10);  // nobody counts
  EXPECT_FALSE(tuners[1].is_settled());
}

TEST(MoeRouteTuner, RemarksAreWords) {
  for (const bool is_gathered : {false, true})
    for (const bool next : {false, true})
      for (const uint32_t took : {0U, 1U, 12'345U, Remark::kMostTook}) {
        const Remark remark = Remark::of(Remark{is_gathered, next, took}.word());
        EXPECT_EQ(remark.is_gathered, is_gathered);
        EXPECT_EQ(remark.gathers_next, next);
        EXPECT_EQ(remark.took, took);
      }
  EXPECT_EQ(Remark::of(Remark{false, false, ~0U}.word()).took, Remark::kMostTook);
}

}  // namespace
}  // namespace braid::moe
