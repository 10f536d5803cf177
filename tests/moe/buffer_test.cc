// Whole calls between ranks against the reference, byte for byte: both modes, every form, one to
// eight ranks, windows that need many rounds, two calls in flight, and what goes wrong.
#include "moe/buffer.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "moe/buffers.h"
#include "moe/routings.h"
#include "support/thread_group.h"

namespace braid::moe {
namespace {

using reference::Bytes;
using test::expect_low_latency_rows;
using test::Told;
using testing::HasSubstr;

constexpr int kMaxTokens = 160;  // room for tokens that name an expert six times

class MoeRanks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, MoeRanks, testing::Values(1, 2, 3, 4, 5, 8));

void low_latency_on_random_routings(int n, bool can_shrink, bool by_rank = false) {
  const BufferOptions options{low_latency_half_bytes(kMaxTokens, 64, n, 64), can_shrink};
  std::vector<Told> told(12);
  test::run_buffers(n, options, test::config_of(), [&](Buffer& buffer) {
    for (uint64_t seed = 0; seed < told.size(); ++seed) {
      const auto p = test::random_problem(seed + 1000 * static_cast<uint64_t>(n), n, 64);
      test::LowLatency call(p, buffer.rank(), kMaxTokens, ScaleForm::kNone, by_rank);
      const auto sent = buffer.send(call.dispatch);
      ASSERT_TRUE(sent.ok()) << sent.status().to_string();
      Status status = buffer.receive(*&sent.value(), call.dispatch, call.rows);
      ASSERT_TRUE(status.ok()) << status.to_string();
      expect_low_latency_rows(call, buffer.rank());
      told[seed].tell(buffer.rank(), call.packed());
      const auto combine = by_rank ? call.combine_by_rank(sent.value().phase)
                                   : call.combine(sent.value().phase, call.own.weights);
      const auto back = buffer.send(combine);
      ASSERT_TRUE(back.ok()) << back.status().to_string();
      Bytes out(static_cast<uint64_t>(call.own.count) * p.row_bytes);
      status = buffer.receive(back.value(), combine, out.data(), nullptr);
      ASSERT_TRUE(status.ok()) << status.to_string();
      const auto reference =
          by_rank ? reference::combine_low_latency_by_rank : reference::combine_low_latency;
      EXPECT_EQ(out,
                reference(p, buffer.rank(), Dtype::kBfloat16, told[seed].all(), call.own.weights))
          << "seed " << seed;
    }
  });
}

TEST_P(MoeRanks, LowLatencyIsTheReference) { low_latency_on_random_routings(GetParam(), false); }
TEST_P(MoeRanks, LowLatencyOfABufferThatMayShrinkIsTheReference) {
  low_latency_on_random_routings(GetParam(), true);
}

TEST_P(MoeRanks, LowLatencyByRankIsTheReference) {
  low_latency_on_random_routings(GetParam(), false, true);
  low_latency_on_random_routings(GetParam(), true, true);
}

// A window of a few rows: tokens go in many rounds.
TEST_P(MoeRanks, NormalIsTheReferenceInManyRounds) {
  const int n = GetParam();
  for (const uint64_t half_bytes : {uint64_t{1} << 10, uint64_t{1} << 16}) {
    const BufferOptions options{half_bytes * static_cast<uint64_t>(n), false};
    std::vector<Told> told(8);
    test::run_buffers(n, options, test::config_of(), [&](Buffer& buffer) {
      for (uint64_t seed = 0; seed < told.size(); ++seed) {
        const auto p = test::random_problem(seed + 77 * static_cast<uint64_t>(n), n, 96, 60);
        test::Normal call(p, buffer.rank());
        Status status = call.run(buffer);
        ASSERT_TRUE(status.ok()) << status.to_string();
        const auto expected = reference::by_source(p, buffer.rank(), 1);
        EXPECT_EQ(call.x, expected.rows);
        EXPECT_EQ(call.ids, expected.ids);
        EXPECT_EQ(call.weights, expected.weights);
        EXPECT_EQ(call.source_token, expected.source_token);
        EXPECT_EQ(call.incoming.per_expert, expected.rows_per_expert);
        told[seed].tell(buffer.rank(), call.x);
        const auto bias = test::rows_of(9, call.own.count, p.row_bytes);
        Bytes out;
        std::vector<float> weights;
        Combine combine = call.combine(call.x, out, weights);
        combine.biases[0] = bias.data();
        status = buffer.combine(combine);
        ASSERT_TRUE(status.ok()) << status.to_string();
        EXPECT_EQ(out,
                  reference::combine(p, buffer.rank(), Dtype::kBfloat16, told[seed].all(), {bias}))
            << "seed " << seed;
        for (size_t i = 0; i < weights.size(); ++i)
          EXPECT_EQ(weights[i], call.own.ids[i] < 0 ? 0 : call.own.weights[i]);
      }
    });
  }
}

TEST(MoeBuffer, RowsAreCastOnTheirWay) {
  constexpr int kRanks = 3;
  for (const ScaleForm form : {ScaleForm::kFloat, ScaleForm::kPowerOf2, ScaleForm::kUe8m0}) {
    const BufferOptions options{low_latency_half_bytes(kMaxTokens, 2048, kRanks, 12), false};
    test::run_buffers(kRanks, options, test::config_of(), [&](Buffer& buffer) {
      const auto p = test::random_problem(5, kRanks, 2048);
      test::LowLatency call(p, buffer.rank(), kMaxTokens, form);
      const auto sent = buffer.send(call.dispatch);
      ASSERT_TRUE(sent.ok()) << sent.status().to_string();
      ASSERT_TRUE(buffer.receive(sent.value(), call.dispatch, call.rows).ok());
      const auto rows = reference::by_expert(p, buffer.rank());
      std::vector<size_t> next(call.l);
      const uint64_t hidden = call.dispatch.hidden, words = scale_bytes(form, hidden) / 4;
      for (const reference::Row& row : rows) {
        const auto e = static_cast<size_t>(row.expert);
        const size_t place = next[e]++;
        Bytes cast(hidden), scales(4 * words);
        cast_row(Dtype::kBfloat16,
                 p.ranks[static_cast<size_t>(row.source)].rows.data() +
                     static_cast<uint64_t>(row.token) * p.row_bytes,
                 hidden, form, cast.data(), scales.data());
        EXPECT_EQ(0, std::memcmp(call.x.data() + (e * call.per_expert + place) * hidden,
                                 cast.data(), hidden));
        for (uint64_t w = 0; w < words; ++w)
          EXPECT_EQ(
              0, std::memcmp(call.scales.data() + ((e * words + w) * call.per_expert + place) * 4,
                             scales.data() + 4 * w, 4));
      }
    });
  }
}

TEST(MoeBuffer, TwoCallsAreInFlightAndAThirdIsRefused) {
  constexpr int kRanks = 4;
  const BufferOptions options{low_latency_half_bytes(kMaxTokens, 64, kRanks, 64), false};
  test::run_buffers(kRanks, options, test::config_of(), [&](Buffer& buffer) {
    const auto p0 = test::random_problem(31, kRanks, 64), p1 = test::random_problem(32, kRanks, 64);
    for (int repeat = 0; repeat < 20; ++repeat) {
      if (buffer.rank() == repeat % kRanks)  // one rank is behind
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      test::LowLatency first(p0, buffer.rank(), kMaxTokens), second(p1, buffer.rank(), kMaxTokens);
      const auto a = buffer.send(first.dispatch), b = buffer.send(second.dispatch);
      ASSERT_TRUE(a.ok() && b.ok());
      const Status third = buffer.send(second.dispatch).status();
      EXPECT_EQ(third.code(), Code::kInvalidArgument);
      EXPECT_THAT(third.message(), HasSubstr("hook"));
      EXPECT_THAT(buffer.begin(test::Normal(p0, buffer.rank()).dispatch).status().message(),
                  HasSubstr("hook"));
      ASSERT_TRUE(buffer.receive(b.value(), second.dispatch, second.rows).ok());
      ASSERT_TRUE(buffer.receive(a.value(), first.dispatch, first.rows).ok());
      expect_low_latency_rows(first, buffer.rank());
      expect_low_latency_rows(second, buffer.rank());
    }
  });
}

// As early as can be, when rows of others may still be on their way: they are in nobody's.
TEST(MoeBuffer, AResultThatOneRankDropsIsTheOthersAllTheSame) {
  constexpr int kRanks = 3;
  const BufferOptions options{low_latency_half_bytes(kMaxTokens, 64, kRanks, 48), false};
  test::run_buffers(kRanks, options, test::config_of(), [&](Buffer& buffer) {
    for (int repeat = 0; repeat < 60; ++repeat) {
      const auto p = test::random_problem(static_cast<uint64_t>(40 + repeat), kRanks, 48);
      if (buffer.rank() == (repeat + 1) % kRanks)
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      test::LowLatency call(p, buffer.rank(), kMaxTokens);
      const auto sent = buffer.send(call.dispatch);
      ASSERT_TRUE(sent.ok()) << sent.status().to_string();
      if (buffer.rank() == repeat % kRanks) {
        buffer.drop(sent.value());
        buffer.drop(sent.value());  // nothing
        continue;
      }
      ASSERT_TRUE(buffer.receive(sent.value(), call.dispatch, call.rows).ok());
      expect_low_latency_rows(call, buffer.rank());
    }
  });
}

/// What rank 1 does between rank 0's last look at its window and the answer that rank 1 died.
struct Death {
  std::atomic<bool> is_armed{false};  // rank 0's next call is its receive
  std::atomic<bool> is_begun{false}, is_asked{false}, is_through{false};
};

class GroupOfOneWhoDies final : public braid::test::ThreadGroup {
 public:
  GroupOfOneWhoDies(std::shared_ptr<braid::test::ThreadHub> hub, int rank, Death& death)
      : ThreadGroup(std::move(hub), rank), death_(death) {}
  bool broken() const noexcept override {
    if (rank() != 0 || !death_.is_armed) return ThreadGroup::broken();
    if (!death_.is_begun.exchange(true)) return false;  // before the first look
    death_.is_asked = true;
    while (!death_.is_through) std::this_thread::yield();
    return true;
  }
  Status fate() const override { return broken() ? peer_lost("rank 1 died") : Status(); }

 private:
  Death& death_;
};

// Rank 0 had the whole of a call, and was told that who had sent it was lost.
TEST(MoeBuffer, WhoDiedBehindItsPartOfACallDidItsPart) {
  constexpr int kRanks = 2;
  const BufferOptions options{low_latency_half_bytes(kMaxTokens, 64, kRanks, 64), false};
  const auto p = test::random_problem(11, kRanks, 64);
  auto hub = std::make_shared<braid::test::ThreadHub>(kRanks);
  Death death;
  braid::test::run_threads(kRanks, [&](int rank) {
    auto comm = comm::Comm::create(std::make_unique<GroupOfOneWhoDies>(hub, rank, death),
                                   test::config_of());
    ASSERT_TRUE(comm.ok()) << comm.status().to_string();
    auto buffer = Buffer::create(**comm, options);
    ASSERT_TRUE(buffer.ok()) << buffer.status().to_string();
    test::LowLatency call(p, rank, kMaxTokens);
    while (rank == 1 && !death.is_asked) std::this_thread::yield();
    const auto sent = (*buffer)->send(call.dispatch);
    EXPECT_TRUE(sent.ok()) << sent.status().to_string();
    if (rank == 0) death.is_armed = true;
    if (sent.ok()) {
      const Status status = (*buffer)->receive(sent.value(), call.dispatch, call.rows);
      EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.to_string();
      if (status.ok()) expect_low_latency_rows(call, rank);
    }
    (rank == 0 ? death.is_armed : death.is_through) = rank == 1;
    buffer->reset();
  });
}

/// Every rank makes a dispatch that `change` has changed; all must get the same error, and the call
/// after it must work.
void expect_disagreement(const std::function<void(int, test::LowLatency&)>& change,
                         const std::string& words) {
  constexpr int kRanks = 3;
  const BufferOptions options{low_latency_half_bytes(2 * kMaxTokens, 256, kRanks, 64), false};
  std::mutex mutex;
  std::vector<std::string> said;
  test::run_buffers(kRanks, options, test::config_of(), [&](Buffer& buffer) {
    auto p = test::random_problem(7, kRanks, 64);
    test::LowLatency call(p, buffer.rank(), kMaxTokens);
    change(buffer.rank(), call);
    const auto sent = buffer.send(call.dispatch);
    ASSERT_TRUE(sent.ok()) << sent.status().to_string();
    const Status status = buffer.receive(sent.value(), call.dispatch, call.rows);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(words));
    {
      const std::lock_guard lock(mutex);
      said.push_back(status.message().substr(status.message().find("ranks disagree")));
    }
    test::LowLatency again(p, buffer.rank(), kMaxTokens);
    const auto next = buffer.send(again.dispatch);
    ASSERT_TRUE(next.ok());
    ASSERT_TRUE(buffer.receive(next.value(), again.dispatch, again.rows).ok());
    expect_low_latency_rows(again, buffer.rank());
  });
  for (const std::string& each : said) EXPECT_EQ(each, said[0]);
}

TEST(MoeBuffer, AllRanksGetTheErrorWhereTheyDisagree) {
  expect_disagreement(
      [](int rank, test::LowLatency& call) {
        if (rank == 1) call.dispatch.max_tokens = kMaxTokens + 8;
      },
      "rank 0 has num_max_dispatch_tokens_per_rank 160, rank 1 has 168");
  expect_disagreement(
      [](int rank, test::LowLatency& call) {
        if (rank == 2) call.dispatch.num_experts *= 2;
      },
      "num_experts");
  expect_disagreement(
      [](int rank, test::LowLatency& call) {
        if (rank == 0) call.dispatch.hidden /= 2;
      },
      "bytes a row");
  expect_disagreement(
      [](int rank, test::LowLatency& call) {
        if (rank == 0) call.dispatch.dtype = Dtype::kFloat16;
      },
      "rank 0 has rows of float16, rank 1 of bfloat16");
}

TEST(MoeBuffer, CallsInAnotherOrderAreAnErrorOfAll) {
  constexpr int kRanks = 3;
  const BufferOptions options{low_latency_half_bytes(kMaxTokens, 64, kRanks, 64), false};
  test::run_buffers(kRanks, options, test::config_of(), [&](Buffer& buffer) {
    const auto p = test::random_problem(8, kRanks, 64);
    test::Normal normal(p, buffer.rank());
    test::LowLatency call(p, buffer.rank(), kMaxTokens);
    Status status;
    if (buffer.rank() == 1) {
      status = normal.run(buffer);
    } else {
      const auto sent = buffer.send(call.dispatch);
      ASSERT_TRUE(sent.ok());
      status = buffer.receive(sent.value(), call.dispatch, call.rows);
    }
    EXPECT_THAT(status.message(),
                HasSubstr("rank 0 calls low_latency_dispatch, rank 1 calls dispatch"));
    test::Normal again(p, buffer.rank());
    EXPECT_TRUE(again.run(buffer).ok());
    EXPECT_EQ(again.x, reference::by_source(p, buffer.rank(), 1).rows);
  });
}

TEST(MoeBuffer, ALateRankIsNamedAndTheBufferGoesOn) {
  constexpr int kRanks = 3;
  const BufferOptions options{low_latency_half_bytes(kMaxTokens, 64, kRanks, 64), false};
  const Config config = test::config_of({{"BRAID_TIMEOUT", "300ms"}});
  test::run_buffers(kRanks, options, config, [&](Buffer& buffer) {
    const auto p = test::random_problem(9, kRanks, 64);
    test::LowLatency call(p, buffer.rank(), kMaxTokens);
    if (buffer.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const auto sent = buffer.send(call.dispatch);
    ASSERT_TRUE(sent.ok());
    const Status status = buffer.receive(sent.value(), call.dispatch, call.rows);
    if (buffer.rank() == 2) {
      EXPECT_TRUE(status.ok());  // the others had sent in time
    } else {
      EXPECT_EQ(status.code(), Code::kTimeout);
      EXPECT_THAT(status.message(), HasSubstr("rank 2 has not come within 300"));
      std::this_thread::sleep_for(std::chrono::milliseconds(350));
    }
    for (int repeat = 0; repeat < 5; ++repeat) {
      test::LowLatency again(p, buffer.rank(), kMaxTokens);
      const auto next = buffer.send(again.dispatch);
      ASSERT_TRUE(next.ok()) << next.status().to_string();
      ASSERT_TRUE(buffer.receive(next.value(), again.dispatch, again.rows).ok());
      expect_low_latency_rows(again, buffer.rank());
    }
  });
}

TEST(MoeBuffer, ARankThatIsLateIsGivenUpWhereTheCallerAskedForIt) {
  constexpr int kRanks = 4;
  const BufferOptions options{low_latency_half_bytes(kMaxTokens, 64, kRanks, 64), true};
  const Config config = test::config_of({{"BRAID_TIMEOUT", "300ms"}});
  test::run_buffers(kRanks, options, config, [&](Buffer& buffer) {
    const auto p = test::random_problem(31, kRanks, 64);
    for (int repeat = 0; repeat < 4; ++repeat) {
      if (buffer.rank() == 2 && repeat == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
        test::LowLatency late(p, buffer.rank(), kMaxTokens);
        const auto sent = buffer.send(late.dispatch);
        EXPECT_EQ(sent.status().code(), Code::kPeerLost);
        EXPECT_THAT(sent.status().message(), HasSubstr("given up by rank"));
        return;
      }
      test::LowLatency call(p, buffer.rank(), kMaxTokens);
      const auto sent = buffer.send(call.dispatch);
      ASSERT_TRUE(sent.ok()) << sent.status().to_string();
      const Status status = buffer.receive(sent.value(), call.dispatch, call.rows);
      ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(buffer.mask(), repeat == 0 ? 0U : 4U);
      const auto combine = call.combine(sent.value().phase, call.own.weights);
      const auto back = buffer.send(combine);
      ASSERT_TRUE(back.ok()) << back.status().to_string();
      Bytes out(static_cast<uint64_t>(call.own.count) * p.row_bytes);
      ASSERT_TRUE(buffer.receive(back.value(), combine, out.data(), nullptr).ok());
      // Its experts' part of the sum is missing, and no more.
      for (int t = 0; t < call.own.count && repeat > 0; ++t) {
        std::vector<float> x(p.row_bytes / 2), sum(x.size());
        widen(Dtype::kBfloat16, call.own.rows.data() + static_cast<uint64_t>(t) * p.row_bytes,
              x.data(), x.size());
        for (int k = 0; k < p.num_topk; ++k) {
          const auto i = static_cast<size_t>(t * p.num_topk + k);
          const int64_t id = call.own.ids[i];
          if (id < 0 || id / (p.num_experts / kRanks) == 2) continue;
          for (size_t c = 0; c < x.size(); ++c) sum[c] += call.own.weights[i] * x[c];
        }
        Bytes expected(p.row_bytes);
        narrow(Dtype::kBfloat16, sum.data(), expected.data(), sum.size());
        EXPECT_EQ(0, std::memcmp(expected.data(),
                                 out.data() + static_cast<uint64_t>(t) * p.row_bytes, p.row_bytes));
      }
    }
  });
}

TEST(MoeBuffer, WhatOneRankSeesAloneIsAnsweredBeforeAnythingIsSent) {
  constexpr int kRanks = 2;
  const BufferOptions options{low_latency_half_bytes(kMaxTokens, 64, kRanks, 64), false};
  test::run_buffers(kRanks, options, test::config_of(), [&](Buffer& buffer) {
    const auto p = test::vector_a(64);
    const auto refused = [&](const std::function<void(LowLatencyDispatch&)>& change,
                             const std::string& words) {
      test::LowLatency call(p, buffer.rank(), kMaxTokens);
      change(call.dispatch);
      const Status status = buffer.send(call.dispatch).status();
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_THAT(status.message(), HasSubstr(words));
      EXPECT_THAT(status.message(), HasSubstr(fmt::format("on rank {}", buffer.rank())));
    };
    const std::vector<int64_t> high = {0, 4, 0, 0, 0, 0}, low = {0, -2, 0, 0, 0, 0};
    refused([&](LowLatencyDispatch& c) { c.ids = high.data(); }, "expected -1 to 3, got 4");
    refused([&](LowLatencyDispatch& c) { c.ids = low.data(); }, "expected -1 to 3, got -2");
    refused([](LowLatencyDispatch& c) { c.num_experts = 5; },
            "expected a multiple of 2 ranks, got 5");
    refused([](LowLatencyDispatch& c) { c.num_topk = 33; },
            "expected 1 to 32 experts a token, got 33");
    refused([](LowLatencyDispatch& c) { c.max_tokens = 1; }, "expected at most 1 tokens");
    refused([](LowLatencyDispatch& c) { c.hidden = 4; }, "multiple of 16 bytes, got 8");
    refused([](LowLatencyDispatch& c) { c.form = ScaleForm::kFloat; }, "multiple of 128 channels");
    refused([](LowLatencyDispatch& c) { c.max_tokens = 100000; }, "buffer is too small");
    test::LowLatency call(p, buffer.rank(), kMaxTokens);
    const auto sent = buffer.send(call.dispatch);
    ASSERT_TRUE(sent.ok());
    ASSERT_TRUE(buffer.receive(sent.value(), call.dispatch, call.rows).ok());
    LowLatencyCombine combine = call.combine(sent.value().phase, call.own.weights);
    combine.ids_hash ^= 1;
    EXPECT_THAT(buffer.send(combine).status().message(), HasSubstr("ids of the dispatch"));
    EXPECT_EQ(buffer.set_masked(buffer.rank(), true).code(), Code::kInvalidArgument);
  });
}

// What a combine is given becomes places in windows, whoever vouches for it.
TEST(MoeBuffer, ACombineOfIdsSlotsOrRangesThatAreNoneIsRefused) {
  constexpr int kRanks = 2;
  for (const bool can_shrink : {false, true}) {
    const BufferOptions options{low_latency_half_bytes(kMaxTokens, 64, kRanks, 64), can_shrink};
    test::run_buffers(kRanks, options, test::config_of(), [&](Buffer& buffer) {
      const auto p = test::vector_a(64);
      test::LowLatency call(p, buffer.rank(), kMaxTokens);
      const auto sent = buffer.send(call.dispatch);
      ASSERT_TRUE(sent.ok());
      ASSERT_TRUE(buffer.receive(sent.value(), call.dispatch, call.rows).ok());
      const auto good = call.combine(sent.value().phase, call.own.weights);
      const auto refused = [&](const LowLatencyCombine& c, const std::string& words) {
        const auto back = buffer.send(c);
        EXPECT_EQ(back.status().code(), Code::kInvalidArgument);
        EXPECT_THAT(back.status().message(), HasSubstr(words));
        Bytes out(static_cast<uint64_t>(call.own.count) * p.row_bytes);
        if (back.ok()) (void)buffer.receive(back.value(), c, out.data(), nullptr);
      };
      for (const int64_t id : {int64_t{1} << 28, int64_t{4}, int64_t{-2}}) {
        const std::vector<int64_t> ids(static_cast<size_t>(call.own.count * p.num_topk), id);
        LowLatencyCombine c = good;
        c.ids = ids.data();
        c.ids_hash = hash_of(ids.data(), call.own.count, p.num_topk);
        refused(c, fmt::format("argument topk_idx: expected -1 to 3, got {}", id));
      }
      LowLatencyCombine c = good;
      std::vector<int32_t> slots(call.slots.size(), kMaxTokens * p.num_topk);
      c.slots = slots.data();
      refused(c, "expected a slot of the dispatch, got 3");
      std::ranges::fill(slots, -1);
      refused(c, "expected a slot of the dispatch, got -1");
      c = good;
      for (const int64_t range :
           {packed_range(0, 1 << 20), packed_range(-1, 1), packed_range(0, -1)}) {
        const std::vector<int64_t> ranges(call.layout_range.size(), range);
        c.layout_range = ranges.data();
        refused(c, "argument handle: expected a range of the dispatch");
      }
      const auto back = buffer.send(good);
      ASSERT_TRUE(back.ok()) << back.status().to_string();
      Bytes out(static_cast<uint64_t>(call.own.count) * p.row_bytes);
      EXPECT_TRUE(buffer.receive(back.value(), good, out.data(), nullptr).ok());
    });
  }
}

// Who gives up a dispatch with rounds left tells the others, and need not call again for that.
TEST(MoeBuffer, ADispatchThatOneRankGivesUpEndsOnTheOthersAtOnce) {
  constexpr int kRanks = 2;
  const BufferOptions options{uint64_t{1} << 11, false};
  reference::Problem p{kRanks, 1, 96, {}};
  for (int r = 0; r < kRanks; ++r) {
    reference::Tokens tokens;
    tokens.count = 60;
    tokens.rows = test::rows_of(r, tokens.count, p.row_bytes);
    for (int t = 0; t < tokens.count; ++t) tokens.ids.push_back(t % kRanks);
    tokens.weights.resize(tokens.ids.size(), 1.0F);
    p.ranks.push_back(std::move(tokens));
  }
  std::atomic<bool> is_told = false;
  test::run_buffers(kRanks, options, test::config_of({{"BRAID_TIMEOUT", "30s"}}),
                    [&](Buffer& buffer) {
                      test::Normal call(p, buffer.rank());
                      if (buffer.rank() == 0) {
                        ASSERT_TRUE(buffer.begin(call.dispatch).ok());
                        const uint32_t phase = buffer.begun_phase();
                        buffer.abandon(phase + 1);  // another one
                        EXPECT_EQ(buffer.begun_phase(), phase);
                        buffer.abandon(phase);
                        EXPECT_EQ(buffer.begun_phase(), 0U);
                        const int64_t end_ns = now_ns() + 40'000'000'000;
                        while (!is_told && now_ns() < end_ns)
                          std::this_thread::sleep_for(std::chrono::milliseconds(1));
                      } else {
                        const int64_t begin_ns = now_ns();
                        const Status status = call.run(buffer);
                        is_told = true;
                        EXPECT_EQ(status.code(), Code::kUnavailable) << status.to_string();
                        EXPECT_THAT(status.message(), HasSubstr("rank 0 could not take part"));
                        EXPECT_LT(now_ns() - begin_ns, 20'000'000'000);
                      }
                      int tries = 0;  // until calls are in step
                      for (bool is_good = false; !is_good && tries < 5; ++tries) {
                        test::Normal again(p, buffer.rank());
                        is_good = again.run(buffer).ok();
                        if (is_good) {
                          EXPECT_EQ(again.x, reference::by_source(p, buffer.rank(), 1).rows);
                        }
                      }
                      EXPECT_LT(tries, 5);
                    });
}

TEST(MoeBuffer, HostsThatShareNoMemoryGetTheSameBits) {
  constexpr int kRanks = 4;
  const BufferOptions options{low_latency_half_bytes(kMaxTokens, 64, kRanks, 64), false};
  std::vector<Told> told(4);
  test::run_buffers(
      kRanks, options, test::config_of({{"BRAID_LINKS", "rdma:tcp"}}),
      [&](Buffer& buffer) {
        for (uint64_t seed = 0; seed < told.size(); ++seed) {
          const auto p = test::random_problem(seed + 400, kRanks, 64);
          test::LowLatency call(p, buffer.rank(), kMaxTokens);
          const auto sent = buffer.send(call.dispatch);
          ASSERT_TRUE(sent.ok()) << sent.status().to_string();
          const Status status = buffer.receive(sent.value(), call.dispatch, call.rows);
          ASSERT_TRUE(status.ok()) << status.to_string();
          expect_low_latency_rows(call, buffer.rank());
          test::Normal normal(p, buffer.rank());
          ASSERT_TRUE(normal.run(buffer).ok());
          EXPECT_EQ(normal.x, reference::by_source(p, buffer.rank(), 1).rows);
        }
      },
      [](int rank, Config& config) {  // two hosts of two ranks
        ASSERT_TRUE(config.set("BRAID_HOST_ID", rank < 2 ? "one" : "two").ok());
      });
}

TEST(MoeBuffer, BytesThatLeaveAreTheFormulas) {
  constexpr int kRanks = 4;
  const BufferOptions options{low_latency_half_bytes(kMaxTokens, 512, kRanks, 64), false};
  test::run_buffers(kRanks, options, test::config_of(), [&](Buffer& buffer) {
    const auto p = test::random_problem(31, kRanks, 512);
    test::LowLatency call(p, buffer.rank(), kMaxTokens);
    const auto sent = buffer.send(call.dispatch);
    ASSERT_TRUE(sent.ok());
    const uint64_t copy = 512 + 8 + 4 * static_cast<uint64_t>(p.num_topk);
    for (int peer = 0; peer < kRanks; ++peer)
      EXPECT_EQ(buffer.sent_bytes(peer),
                peer == buffer.rank()
                    ? 0
                    : reference::copy_bytes(p, buffer.rank(), peer, copy) + kLineBytes);
    ASSERT_TRUE(buffer.receive(sent.value(), call.dispatch, call.rows).ok());
  });
}

}  // namespace
}  // namespace braid::moe
