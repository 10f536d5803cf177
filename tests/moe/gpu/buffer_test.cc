// What launches of dispatch and combine are told, on fake GPUs: kernels are looked at by functions of
// the test. Their bytes are tests/device/moe_check.cc's business, on real ones.
#include "moe/gpu/buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "base/units.h"
#include "moe/call_shape.h"
#include "support/forked.h"
#include "support/gpu_ranks.h"

namespace braid::moe::gpu {
namespace {

using braid::test::GpuRank;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kHalfBytes = 1_MiB;
constexpr uint32_t kSms = 132;  // of a fake GPU

/// Every launch of a kernel of moe's, by rank.
class Launches {
 public:
  struct Launch {
    std::string name;
    sys::LaunchShape shape;
    std::vector<std::byte> args;
    template <typename Args>
    Args as() const {
      Args made;
      std::memcpy(static_cast<void*>(&made), args.data(), sizeof made);
      return made;
    }
  };

  explicit Launches(sys::FakeCuda& cuda) {
    braid::test::define_team_kernels(cuda);
    define<LayoutArgs>(cuda, "braid_moe_layout", [](const LayoutArgs& a) { return a.watch.rank; });
    for (const char* type : {"", "_bf16", "_fp16", "_fp32"})
      define<LlSendArgs>(cuda, std::string("braid_moe_ll_send") + type);
    define<LlFanOutArgs>(cuda, "braid_moe_ll_fan_out");
    define<LlReturnArgs>(cuda, "braid_moe_ll_return");
    define<DispatchArgs>(cuda, "braid_moe_dispatch_finish");
    for (const char* type : {"_bf16", "_fp16", "_fp32"}) {
      define<LlSumArgs>(cuda, std::string("braid_moe_ll_sum") + type);
      define<LlRankReturnArgs>(cuda, std::string("braid_moe_ll_rank_return") + type);
      define<LlSumArgs>(cuda, std::string("braid_moe_ll_rank_sum") + type);
      define<CombineArgs>(cuda, std::string("braid_moe_combine") + type);
    }
    define<DispatchArgs>(cuda, "braid_moe_dispatch_begin", [this](const DispatchArgs& a) {
      if (a.host_incoming != nullptr && says_what_comes) say(a);
      return a.team.rank;
    });
  }

  std::vector<std::string> names_of(int rank) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    const auto found = by_rank_.find(rank);
    if (found != by_rank_.end())
      for (const Launch& each : found->second) names.push_back(each.name);
    return names;
  }
  Launch last_of(int rank) const {
    const std::lock_guard lock(mutex_);
    return by_rank_.at(rank).back();
  }
  std::atomic<bool> says_what_comes = true;
  /// As the kernel does: 3 rows of source 0, 4 of source 1, of 9 tokens at most, in phase 5.
  static void say(const DispatchArgs& a) {
    const int32_t words[] = {7, 9, 5, 3, 4, 1, 3, 2, 7, 4, 3};
    std::memcpy(a.host_incoming + 1, words, sizeof words);
    std::atomic_ref(a.host_incoming[0]).store(1, std::memory_order_release);
  }

 private:
  template <typename Args>
  void define(
      sys::FakeCuda& cuda, const std::string& name,
      std::function<int(const Args&)> look = [](const Args& a) { return a.team.rank; }) {
    cuda.define_kernel(
        name, [this, name, look](const sys::LaunchShape& shape, std::span<void*> arguments) {
          const auto args = braid::test::argument<Args>(arguments, 0);
          const int rank = look(args);
          const auto* const bytes = static_cast<const std::byte*>(arguments[0]);
          const std::lock_guard lock(mutex_);
          by_rank_[rank].push_back({name, shape, {bytes, bytes + sizeof(Args)}});
          return Status();
        });
  }

  mutable std::mutex mutex_;
  std::map<int, std::vector<Launch>> by_rank_;
};

/// Device memory for any argument: nothing follows it.
std::byte* some(uint64_t number) { return sys::pointer_to<std::byte>(0x10000 * (number + 1)); }
template <typename T>
T* some(uint64_t number) {
  return sys::pointer_to<T>(0x10000 * (number + 1));
}

/// Results of a dispatch that has room for so many.
DispatchedRows rows_for(int num_rows) {
  return {some(2), nullptr, some<int64_t>(14), some<float>(15), some<int32_t>(16), num_rows};
}

// Else the host would look for the GPU's word in a copy of the page, after a fork.
TEST(MoeGpuMemory, ThePageOfWhatComesIsNotAForkedChilds) {
  sys::FakeCuda cuda(1);
  braid::test::define_team_kernels(cuda);
  braid::test::run_gpus(1, cuda, {}, [](GpuRank& rank) {
    const auto memory = Memory::create(rank.device, kHalfBytes);
    ASSERT_TRUE(memory.ok()) << memory.status().to_string();
    EXPECT_FALSE(braid::test::child_has(memory.value()->host_incoming()));
    memory.value()->forget(rank.device);
  });
}

LowLatencyDispatch dispatch_of(int tokens) {
  LowLatencyDispatch d;
  d.x = some(0);
  d.hidden = 256;
  d.ids = some<int64_t>(1);
  d.num_tokens = tokens;
  d.num_topk = 3;
  d.max_tokens = 8;
  d.num_experts = 4;
  return d;
}
LowLatencyRows rows_of() {
  return {some(2),          some(3),          some<int32_t>(4), some<int32_t>(5),
          some<int32_t>(6), some<int64_t>(7), nullptr,          {}};
}
LowLatencyCombine combine_of(int tokens) {
  LowLatencyCombine c;
  c.x = some(8);
  c.hidden = 256;
  c.slots = some<int32_t>(6);
  c.layout_range = some<int64_t>(7);
  c.ids = some<int64_t>(1);
  c.weights = some<float>(9);
  c.num_tokens = tokens;
  c.num_topk = 3;
  c.max_tokens = 8;
  c.num_experts = 4;
  return c;
}
Dispatch normal_of(int tokens) {
  Dispatch d;
  d.x = some(0);
  d.row_bytes = 512;
  d.num_tokens = tokens;
  d.is_in_rank = some<bool>(10);
  d.per_expert = some<int32_t>(11);
  d.ids = some<int64_t>(1);
  d.weights = some<float>(9);
  d.has_ids = d.has_weights = true;
  d.num_topk = 3;
  d.num_experts = 4;
  return d;
}

struct Ranks {
  sys::FakeCuda cuda{2};
  Launches launches{cuda};
  uint64_t half_bytes = kHalfBytes;
  void run(const std::function<void(GpuRank&, Buffer&, const Launch&)>& body,
           const braid::test::Options& options = {}) {
    braid::test::run_gpus(2, cuda, options, [&](GpuRank& rank) {
      auto made = Buffer::create(rank.device, half_bytes);
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      const sys::Stream stream = cuda.create_stream(sys::StreamPriority::kNormal).value();
      body(rank, *made.value(), {stream, 0});
      rank.all.arrive_and_wait();
      made.value()->close(rank.device);
      made.value().reset();
      EXPECT_TRUE(cuda.destroy_stream(stream).ok());
    });
    EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
  }
};

TEST(MoeGpuBuffer, SendsAndReceivesWithWindowsTicketsAndShapes) {
  Ranks ranks;
  std::array<std::array<std::byte*, 2>, 2> windows{};
  ranks.run([&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
    auto* const ticket = some<Ticket>(20);
    auto* const back = some<Ticket>(21);
    LowLatencyDispatch d = dispatch_of(5);
    d.form = ScaleForm::kPowerOf2;
    auto sent = buffer.send(rank.device, d, ticket, launch);
    ASSERT_TRUE(sent.ok()) << sent.status().to_string();
    const auto send = ranks.launches.last_of(rank.rank());
    EXPECT_EQ(send.name, "braid_moe_ll_send_bf16");
    EXPECT_EQ(send.shape.num_threads, static_cast<uint32_t>(kThreads));
    const auto args = send.as<LlSendArgs>();
    windows[static_cast<size_t>(rank.rank())] = {args.team.windows[0], args.team.windows[1]};
    EXPECT_EQ(args.team.rank, rank.rank());
    EXPECT_EQ(args.team.layout.half_bytes, kHalfBytes);
    EXPECT_EQ(args.x_bytes, 512U);
    EXPECT_EQ(args.row_bytes, 256U);
    EXPECT_EQ(args.slot.bytes, Slot(3, 256, 8).bytes);
    EXPECT_EQ(args.shape.kind, CallKind::kLowLatencyDispatch);
    EXPECT_EQ(args.shape.max_tokens, 8U);
    EXPECT_EQ(args.ticket, ticket);
    EXPECT_EQ(args.team.state->phase, 0U);  // the fake GPU's memory is the host's

    ASSERT_TRUE(buffer.receive(rank.device, *sent, d, rows_of(), nullptr, ticket, launch).ok());
    const auto fan_out = ranks.launches.last_of(rank.rank()).as<LlFanOutArgs>();
    EXPECT_EQ(fan_out.ticket, ticket);
    EXPECT_EQ(fan_out.scale_words, 2);
    EXPECT_EQ(fan_out.shape, args.shape);

    const LowLatencyCombine c = combine_of(5);
    auto given = buffer.send(rank.device, c, ticket, back, launch);
    ASSERT_TRUE(given.ok()) << given.status().to_string();
    EXPECT_EQ(ranks.launches.last_of(rank.rank()).as<LlReturnArgs>().of, ticket);
    ASSERT_TRUE(
        buffer.receive(rank.device, *given, c, some(12), nullptr, ticket, back, launch).ok());
    EXPECT_EQ(ranks.launches.last_of(rank.rank()).as<LlSumArgs>().ticket, back);
    EXPECT_THAT(ranks.launches.names_of(rank.rank()),
                ElementsAre("braid_moe_ll_send_bf16", "braid_moe_ll_fan_out", "braid_moe_ll_return",
                            "braid_moe_ll_sum_bf16"));
  });
  EXPECT_EQ(windows[0], windows[1]);
  EXPECT_NE(windows[0][0], windows[0][1]);
}

// Weights travel with the rows, and the table of copies goes from the one call to the other.
TEST(MoeGpuBuffer, SumsByRankTakeTheWeightsAndTheTableOfTheDispatch) {
  Ranks ranks;
  ranks.run([&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
    auto* const ticket = some<Ticket>(20);
    auto* const back = some<Ticket>(21);
    const CopyTable copies{some<int32_t>(30), some<int32_t>(31), some<int32_t>(32),
                           some<float>(33)};
    const auto last = [&] { return ranks.launches.last_of(rank.rank()); };
    LowLatencyDispatch d = dispatch_of(5);
    const uint64_t plain = buffer.send(rank.device, d, ticket, launch).value();
    EXPECT_EQ(last().as<LlSendArgs>().weights, nullptr);
    LowLatencyRows rows = rows_of();
    rows.copies = copies;
    ASSERT_TRUE(buffer.receive(rank.device, plain, d, rows, nullptr, ticket, launch).ok());
    EXPECT_EQ(last().as<LlFanOutArgs>().copies.counts, nullptr);
    d.weights = some<float>(9);
    d.has_weights = true;
    const uint64_t sent = buffer.send(rank.device, d, ticket, launch).value();
    const auto send = last().as<LlSendArgs>();
    EXPECT_EQ(send.weights, d.weights);
    EXPECT_EQ(send.slot.bytes, Slot(3, 512, 0, true).bytes);
    EXPECT_EQ(send.shape, shape_of(d));
    EXPECT_THAT(buffer.receive(rank.device, sent, d, rows_of(), nullptr, ticket, launch).message(),
                HasSubstr("asked for room for copies"));
    ASSERT_TRUE(buffer.receive(rank.device, sent, d, rows, nullptr, ticket, launch).ok());
    const auto fan_out = last().as<LlFanOutArgs>();
    EXPECT_EQ(fan_out.copies.counts, copies.counts);
    EXPECT_EQ(fan_out.copies.weights, copies.weights);
    EXPECT_EQ(fan_out.slot.row, send.slot.row);

    LowLatencyCombine c = combine_of(5);
    c.dtype = Dtype::kFloat16;
    c.sums_by_rank = true;
    EXPECT_THAT(buffer.send(rank.device, c, ticket, back, launch).status().message(),
                HasSubstr("argument partial: expected a dispatch that had topk_weights"));
    c.copies = copies;
    const uint64_t given = buffer.send(rank.device, c, ticket, back, launch).value();
    EXPECT_EQ(last().name, "braid_moe_ll_rank_return_fp16");
    const auto args = last().as<LlRankReturnArgs>();
    EXPECT_EQ(args.copies.places, copies.places);
    EXPECT_EQ(args.of, ticket);
    EXPECT_EQ(args.ticket, back);
    EXPECT_EQ(args.max_tokens, 8);
    EXPECT_EQ(args.shape, shape_of(c));
    ASSERT_TRUE(
        buffer.receive(rank.device, given, c, some(12), nullptr, ticket, back, launch).ok());
    EXPECT_EQ(last().name, "braid_moe_ll_rank_sum_fp16");
    EXPECT_EQ(last().as<LlSumArgs>().shape, args.shape);
    EXPECT_EQ(last().as<LlSumArgs>().num_experts, 4);
    c.max_tokens = 1 << 20;
    EXPECT_THAT(buffer.send(rank.device, c, ticket, back, launch).status().message(),
                HasSubstr("the buffer is too small"));
  });
}

// A rank's sums have its region at the owner to themselves, one slot for each token.
TEST(MoeGpuBuffer, SumsByRankNeedRoomInARegion) {
  Ranks ranks;
  ranks.run([&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
    LowLatencyCombine c = combine_of(5);
    c.sums_by_rank = true;
    c.copies = {some<int32_t>(30), some<int32_t>(31), some<int32_t>(32), some<float>(33)};
    const auto is_taken = [&](int max_tokens) {
      c.max_tokens = max_tokens;
      auto sent = buffer.send(rank.device, c, some<Ticket>(20), some<Ticket>(21), launch);
      if (!sent.ok()) return false;
      EXPECT_TRUE(buffer
                      .receive(rank.device, *sent, c, some(12), nullptr, some<Ticket>(20),
                               some<Ticket>(21), launch)
                      .ok());
      return true;
    };
    const auto most = static_cast<int>(kHalfBytes / 2 / c.row_bytes());
    EXPECT_TRUE(is_taken(most));
    EXPECT_FALSE(is_taken(most + 1));
    c.sums_by_rank = false;
    EXPECT_FALSE(is_taken(most));
  });
}

TEST(MoeGpuBuffer, AThirdResultAndASecondHookAreRefused) {
  Ranks ranks;
  ranks.run([&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
    auto* const ticket = some<Ticket>(20);
    const LowLatencyDispatch d = dispatch_of(5);
    const auto receive = [&](uint64_t number) {
      return buffer.receive(rank.device, number, d, rows_of(), nullptr, ticket, launch);
    };
    const uint64_t first = buffer.send(rank.device, d, ticket, launch).value();
    const uint64_t second = buffer.send(rank.device, d, ticket, launch).value();
    EXPECT_THAT(buffer.send(rank.device, d, ticket, launch).status().message(),
                HasSubstr("two results are alive"));
    EXPECT_THAT(
        buffer.begin(rank.device, normal_of(5), nullptr, ticket, some<int32_t>(13), false, launch)
            .message(),
        HasSubstr("a low-latency result is alive"));
    ASSERT_TRUE(receive(second).ok());
    // The half of the first one is still in use, though only one result is alive.
    EXPECT_FALSE(buffer.send(rank.device, d, ticket, launch).ok());
    ASSERT_TRUE(receive(first).ok());
    EXPECT_THAT(receive(first).message(), HasSubstr("called already"));
    EXPECT_THAT(receive(first + 9).message(), HasSubstr("called already"));
    const uint64_t third = buffer.send(rank.device, d, ticket, launch).value();
    ASSERT_TRUE(receive(third).ok());
    EXPECT_EQ(ranks.launches.names_of(rank.rank()).size(), 6U);
  });
}

TEST(MoeGpuBuffer, BothHalvesAtOnceAreTheSameKernelsAndLeaveNothingOpen) {
  Ranks ranks;
  ranks.run([&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
    auto* const ticket = some<Ticket>(20);
    auto* const back = some<Ticket>(21);
    const auto last = [&] { return ranks.launches.last_of(rank.rank()); };
    LowLatencyDispatch d = dispatch_of(5);
    d.form = ScaleForm::kFloat;
    const LowLatencyCombine c = combine_of(5);
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(buffer.run(rank.device, d, rows_of(), some<int32_t>(17), ticket, launch).ok());
      const auto fan_out = last().as<LlFanOutArgs>();
      EXPECT_EQ(fan_out.ticket, ticket);
      EXPECT_EQ(fan_out.stats, some<int32_t>(17));
      EXPECT_EQ(fan_out.count, rows_of().count);
      EXPECT_EQ(fan_out.shape, shape_of(d));
      ASSERT_TRUE(
          buffer.run(rank.device, c, some(12), some<int64_t>(18), ticket, back, launch).ok());
      const auto sum = last().as<LlSumArgs>();
      EXPECT_EQ(sum.of, ticket);
      EXPECT_EQ(sum.ticket, back);
      EXPECT_EQ(sum.out, some(12));
      EXPECT_EQ(sum.wait_ns, some<int64_t>(18));
    }
    const auto names = ranks.launches.names_of(rank.rank());
    ASSERT_EQ(names.size(), 12U);
    for (size_t i = 0; i < names.size(); i += 4)
      EXPECT_THAT(std::vector(names.begin() + static_cast<ptrdiff_t>(i),
                              names.begin() + static_cast<ptrdiff_t>(i + 4)),
                  ElementsAre("braid_moe_ll_send_bf16", "braid_moe_ll_fan_out",
                              "braid_moe_ll_return", "braid_moe_ll_sum_bf16"));
    EXPECT_THAT(
        buffer.receive(rank.device, 5, c, some(12), nullptr, ticket, back, launch).message(),
        HasSubstr("called already"));
    EXPECT_TRUE(buffer
                    .run(rank.device, normal_of(5),
                         {some(2), nullptr, nullptr, nullptr, nullptr, 7}, nullptr, ticket,
                         some<int32_t>(13), launch)
                    .ok());
  });
}

TEST(MoeGpuBuffer, BothHalvesAtOnceAreRefusedAsOneByOne) {
  Ranks ranks;
  ranks.run([&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
    auto* const ticket = some<Ticket>(20);
    auto* const back = some<Ticket>(21);
    const auto dispatched = [&](const LowLatencyDispatch& d, const LowLatencyRows& rows) {
      return buffer.run(rank.device, d, rows, nullptr, ticket, launch).message();
    };
    LowLatencyDispatch odd = dispatch_of(5), many = dispatch_of(9), weighed = dispatch_of(5);
    odd.x += 8;
    weighed.has_weights = true;
    EXPECT_THAT(dispatched(odd, rows_of()), HasSubstr("argument x: expected an address"));
    EXPECT_THAT(dispatched(many, rows_of()), HasSubstr("low_latency_dispatch on rank"));
    EXPECT_THAT(dispatched(weighed, rows_of()), HasSubstr("asked for room for copies"));
    LowLatencyRows rows = rows_of();
    rows.x += 8;
    EXPECT_THAT(dispatched(dispatch_of(5), rows), HasSubstr("argument recv_x"));
    const LowLatencyCombine c = combine_of(5);
    EXPECT_THAT(buffer.run(rank.device, c, some(12) + 8, nullptr, ticket, back, launch).message(),
                HasSubstr("low_latency_combine on rank"));
    EXPECT_TRUE(ranks.launches.names_of(rank.rank()).empty());
    // Two results of halves one by one are alive: there is no room for any other.
    const uint64_t first = buffer.send(rank.device, dispatch_of(5), ticket, launch).value();
    ASSERT_TRUE(buffer.send(rank.device, dispatch_of(5), ticket, launch).ok());
    EXPECT_THAT(dispatched(dispatch_of(5), rows_of()), HasSubstr("two results are alive"));
    EXPECT_THAT(buffer.run(rank.device, c, some(12), nullptr, ticket, back, launch).message(),
                HasSubstr("two results are alive"));
    EXPECT_EQ(ranks.launches.names_of(rank.rank()).size(), 2U);
    ASSERT_TRUE(
        buffer.receive(rank.device, first, dispatch_of(5), rows_of(), nullptr, ticket, launch)
            .ok());
    EXPECT_EQ(dispatched(dispatch_of(5), rows_of()), "");
  });
}

TEST(MoeGpuBuffer, BothStepsOfANormalDispatchAtOnce) {
  Ranks ranks;
  ranks.run([&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
    auto* const ticket = some<Ticket>(20);
    auto* const words = some<int32_t>(13);
    const Dispatch d = normal_of(5);
    DispatchedRows rows = rows_for(7);
    const auto run = [&] {
      return buffer.run(rank.device, d, rows, some<Ticket>(22), ticket, words, launch);
    };
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(run().ok());
    const auto args = ranks.launches.last_of(rank.rank()).as<DispatchArgs>();
    EXPECT_EQ(args.room_rows, 7);
    EXPECT_EQ(args.incoming, words);
    EXPECT_EQ(args.of, some<Ticket>(22));
    EXPECT_EQ(args.host_incoming, nullptr);
    EXPECT_THAT(ranks.launches.names_of(rank.rank()),
                ElementsAre("braid_moe_dispatch_begin", "braid_moe_dispatch_finish",
                            "braid_moe_dispatch_begin", "braid_moe_dispatch_finish"));
    EXPECT_THAT(buffer.finish(rank.device, d, rows, nullptr, ticket, words, launch).message(),
                HasSubstr("nothing was begun"));
    EXPECT_TRUE(buffer.abandon(rank.device, d, nullptr, ticket, words, launch).ok());
    rows.x += 8;
    EXPECT_THAT(run().message(), HasSubstr("argument recv_x"));
    EXPECT_EQ(ranks.launches.names_of(rank.rank()).size(), 4U);
    rows.x -= 8;
    ASSERT_TRUE(buffer.begin(rank.device, d, nullptr, ticket, words, true, launch).ok());
    EXPECT_THAT(run().message(), HasSubstr("begun and not finished"));
  });
}

// One round is taken while the next one is sent.
TEST(MoeGpuBuffer, CallsOfManyTokensGoInSeveralRoundsAlsoWhereOneHasRoom) {
  Ranks ranks;
  ranks.half_bytes = 64_MiB;
  ranks.run([&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
    auto* const ticket = some<Ticket>(20);
    auto* const words = some<int32_t>(13);
    Dispatch d = normal_of(4096);
    d.row_bytes = 14336;
    DispatchedRows rows = rows_for(9);
    ASSERT_TRUE(buffer.run(rank.device, d, rows, nullptr, ticket, words, launch).ok());
    const Rounds out = ranks.launches.last_of(rank.rank()).as<DispatchArgs>().rounds;
    EXPECT_EQ(out.tokens, 8_MiB / out.copy_bytes);
    EXPECT_EQ(out.copy_bytes, rounds_of(d, ranks.half_bytes / 2, 2).copy_bytes);
    EXPECT_GT(out.count(4096), 6);
    Combine c;
    c.x = some(2);
    c.hidden = 7168;
    c.dtype = Dtype::kBfloat16;
    ASSERT_TRUE(buffer.combine(rank.device, c, words, ticket, launch).ok());
    EXPECT_EQ(ranks.launches.last_of(rank.rank()).as<CombineArgs>().rounds.tokens,
              12_MiB / c.row_bytes());
  });
}

// All stages of a block lie in the shared memory that its launch asks for, beside what it declares.
TEST(MoeGpuBuffer, ADispatchHasStagesWhereAGpuHasRoomForThem) {
  for (const uint32_t small : {0U, 48U << 10, 99U << 10, 163U << 10})
    EXPECT_EQ(bulk_stage_bytes(small), 0U) << small;
  Ranks ranks;
  ranks.run([&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
    auto* const ticket = some<Ticket>(20);
    auto* const words = some<int32_t>(13);
    const DispatchedRows rows = rows_for(9);
    ASSERT_TRUE(buffer.run(rank.device, normal_of(4), rows, nullptr, ticket, words, launch).ok());
    const auto finish = ranks.launches.last_of(rank.rank());
    const uint32_t stage_bytes = finish.as<DispatchArgs>().stage_bytes;
    EXPECT_GE(stage_bytes, 3_KiB);
    EXPECT_EQ(stage_bytes % kBulkUnit, 0U);
    EXPECT_EQ(finish.shape.shared_bytes, stage_bytes * kStagesOfBlock);
    EXPECT_LE(finish.shape.shared_bytes + 8_KiB, rank.device.gpus().most_shared_bytes);
  });
}

TEST(MoeGpuBuffer, ADispatchTellsTheHostWhatComes) {
  Ranks ranks;
  ranks.run([&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
    auto* const ticket = some<Ticket>(20);
    auto* const words = some<int32_t>(13);
    const Dispatch d = normal_of(5);
    ASSERT_TRUE(buffer.begin(rank.device, d, nullptr, ticket, words, true, launch).ok());
    EXPECT_THAT(buffer.send(rank.device, dispatch_of(5), ticket, launch).status().message(),
                HasSubstr("begun and not finished"));
    const auto incoming = buffer.await_incoming(rank.device, d, {});
    ASSERT_TRUE(incoming.ok()) << incoming.status().to_string();
    EXPECT_EQ(incoming->num_rows, 7);
    EXPECT_EQ(incoming->most_tokens, 9);
    EXPECT_EQ(incoming->phase, 5U);
    EXPECT_THAT(incoming->rows_of, ElementsAre(3, 4));
    EXPECT_THAT(incoming->rank_prefix, ElementsAre(1, 3, 2, 7));
    EXPECT_THAT(incoming->per_expert, ElementsAre(4, 3));
    DispatchedRows rows = rows_for(7);
    ASSERT_TRUE(buffer.finish(rank.device, d, rows, nullptr, ticket, words, launch).ok());
    const auto args = ranks.launches.last_of(rank.rank()).as<DispatchArgs>();
    EXPECT_EQ(args.room_rows, 7);
    EXPECT_EQ(args.incoming, words);
    EXPECT_EQ(args.rounds.tokens, rounds_of(d, kHalfBytes / 2, 2).tokens);
    EXPECT_FALSE(buffer.finish(rank.device, d, rows, nullptr, ticket, words, launch).ok());
    Combine c;
    c.x = some(2);
    c.hidden = 256;
    c.dtype = Dtype::kFloat16;
    ASSERT_TRUE(buffer.combine(rank.device, c, words, ticket, launch).ok());
    EXPECT_THAT(ranks.launches.names_of(rank.rank()),
                ElementsAre("braid_moe_dispatch_begin", "braid_moe_dispatch_finish",
                            "braid_moe_combine_fp16"));
  });
}

// Memory for 7 rows is enough for what comes, and the dispatch is over; for 6 it is begun, and a finish with
// room follows, which is no trial.
TEST(MoeGpuBuffer, ADispatchIsTriedBeforeItsSizesAreKnown) {
  Ranks ranks;
  ranks.run([&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
    auto* const ticket = some<Ticket>(20);
    auto* const words = some<int32_t>(13);
    const Dispatch d = normal_of(5);
    DispatchedRows rows = rows_for(7);
    const auto last = [&] { return ranks.launches.last_of(rank.rank()).as<DispatchArgs>(); };
    const auto try_it = [&] {
      return buffer.try_finish(rank.device, d, rows, nullptr, ticket, words, launch);
    };
    const auto finish = [&] {
      return buffer.finish(rank.device, d, rows, nullptr, ticket, words, launch);
    };
    EXPECT_THAT(try_it().message(), HasSubstr("nothing was begun"));
    for (const int room : {7, 6}) {
      rows.num_rows = room;
      ASSERT_TRUE(buffer.begin(rank.device, d, nullptr, ticket, words, true, launch).ok());
      ASSERT_TRUE(try_it().ok());
      EXPECT_TRUE(last().is_trial);
      EXPECT_EQ(last().room_rows, room);
      EXPECT_FALSE(try_it().ok());  // once
      ASSERT_TRUE(buffer.await_incoming(rank.device, d, {}).ok());
      EXPECT_EQ(buffer.is_begun(), room < 7);
    }
    rows.num_rows = 7;
    ASSERT_TRUE(finish().ok());
    EXPECT_FALSE(last().is_trial);
    EXPECT_FALSE(finish().ok());
    ASSERT_TRUE(buffer.begin(rank.device, d, nullptr, ticket, words, true, launch).ok());
    ASSERT_TRUE(buffer.await_incoming(rank.device, d, {}).ok());
    EXPECT_TRUE(buffer.is_begun());  // the trial was of the dispatch before
    ASSERT_TRUE(finish().ok());
  });
}

// The kernel that takes what came takes nothing, for what it reads of the sizes is that no rows come:
// it refuses no room, and gives the rounds back.
TEST(MoeGpuBuffer, ADispatchThatFoundNoMemoryIsGivenBackUnread) {
  Ranks ranks;
  ranks.run([&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
    const braid::test::GuardedMemory memory(rank.cuda, 4 * sizeof(int32_t) * incoming_words(2, 2));
    auto* const words = sys::pointer_to<int32_t>(memory.get());
    for (int word = 0; word < kIncomingHeadWords; ++word) words[word] = 7;
    auto* const ticket = some<Ticket>(20);
    const Dispatch d = normal_of(5);
    const auto abandon = [&] {
      return buffer.abandon(rank.device, d, nullptr, ticket, words, launch);
    };
    EXPECT_TRUE(abandon().ok());  // nothing was begun
    ASSERT_TRUE(buffer.begin(rank.device, d, nullptr, ticket, words, true, launch).ok());
    const Status status = abandon();
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_TRUE(abandon().ok());
    const auto last = ranks.launches.last_of(rank.rank());
    EXPECT_EQ(last.name, "braid_moe_dispatch_finish");
    const auto args = last.as<DispatchArgs>();
    EXPECT_EQ(args.incoming, words);
    EXPECT_EQ(args.ticket, ticket);
    EXPECT_EQ(args.room_rows, 0);
    EXPECT_EQ(args.out, nullptr);
    EXPECT_EQ(args.out_ids, nullptr);
    EXPECT_EQ(args.x, d.x);  // what is left of it goes on
    const auto* const head = reinterpret_cast<const IncomingHead*>(words);
    EXPECT_EQ(head->num_rows, 0);
    EXPECT_EQ(head->is_known, 7);
    EXPECT_EQ(head->most_tokens, 7);
    EXPECT_TRUE(memory.is_guarded());
    EXPECT_TRUE(buffer.send(rank.device, dispatch_of(5), ticket, launch).ok());
    EXPECT_EQ(ranks.launches.names_of(rank.rank()).size(), 3U);
  });
}

// Its kernel may yet have to run, and tells the host when it does: the next dispatch's word is not that one.
TEST(MoeGpuBuffer, WhatAnAbandonedDispatchTellsIsNotTakenForTheNextOnes) {
  Ranks ranks;
  ranks.launches.says_what_comes = false;
  ranks.run([&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
    const braid::test::GuardedMemory memory(rank.cuda, 4 * sizeof(int32_t) * incoming_words(2, 2));
    auto* const words = sys::pointer_to<int32_t>(memory.get());
    auto* const ticket = some<Ticket>(20);
    const Dispatch d = normal_of(5);
    const auto begin = [&] {
      return buffer.begin(rank.device, d, nullptr, ticket, words, true, launch);
    };
    ASSERT_TRUE(begin().ok());
    const auto args = ranks.launches.last_of(rank.rank()).as<DispatchArgs>();
    ASSERT_TRUE(buffer.abandon(rank.device, d, nullptr, ticket, words, launch).ok());
    EXPECT_FALSE(buffer.await_incoming(rank.device, d, {}).ok());
    std::atomic<bool> has_told = false;
    std::thread kernel([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      has_told = true;
      Launches::say(args);
    });
    EXPECT_TRUE(begin().ok());
    EXPECT_TRUE(has_told);
    kernel.join();
    const auto stop = [] { return unavailable("interrupted by a signal"); };
    EXPECT_EQ(buffer.await_incoming(rank.device, d, stop).status().code(), Code::kUnavailable);
    Launches::say(args);
    EXPECT_TRUE(buffer.await_incoming(rank.device, d, {}).ok());
    EXPECT_FALSE(buffer.await_incoming(rank.device, d, {}).ok());  // once
  });
}

TEST(MoeGpuBuffer, ARankWithoutTokensStillGetsWeights) {
  Ranks ranks;
  ranks.run([&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
    Dispatch d = normal_of(0);
    d.x = nullptr;
    d.ids = nullptr;
    d.weights = nullptr;
    ASSERT_TRUE(
        buffer.begin(rank.device, d, nullptr, some<Ticket>(20), some<int32_t>(13), false, launch)
            .ok());
    EXPECT_NE(ranks.launches.last_of(rank.rank()).as<DispatchArgs>().weights, nullptr);
    EXPECT_EQ(ranks.launches.last_of(rank.rank()).as<DispatchArgs>().host_incoming, nullptr);
  });
}

TEST(MoeGpuBuffer, WhatNeverComesEndsAtTheDeadlineOrTheCallersWord) {
  Ranks ranks;
  ranks.launches.says_what_comes = false;
  ranks.run(
      [&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
        const Dispatch d = normal_of(5);
        ASSERT_TRUE(
            buffer.begin(rank.device, d, nullptr, some<Ticket>(20), some<int32_t>(13), true, launch)
                .ok());
        const auto stop = [] { return unavailable("interrupted by a signal"); };
        EXPECT_EQ(buffer.await_incoming(rank.device, d, stop).status().code(), Code::kUnavailable);
        const Status late = buffer.await_incoming(rank.device, d, {}).status();
        EXPECT_EQ(late.code(), Code::kTimeout);
        EXPECT_THAT(late.message(), HasSubstr("did not come to it within"));
      },
      {{"BRAID_TIMEOUT", "400ms"}});
}

TEST(MoeGpuBuffer, BadArgumentsAreRefusedBeforeAnythingIsEnqueued) {
  Ranks ranks;
  ranks.run([&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
    auto* const ticket = some<Ticket>(20);
    const auto said = [&](const std::function<void(LowLatencyDispatch&)>& change) {
      LowLatencyDispatch d = dispatch_of(5);
      change(d);
      const Status status = buffer.send(rank.device, d, ticket, launch).status();
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_THAT(status.message(), HasSubstr("low_latency_dispatch on rank"));
      return status.message();
    };
    EXPECT_THAT(said([](auto& d) { d.x += 8; }), HasSubstr("argument x: expected an address"));
    EXPECT_THAT(said([](auto& d) { d.num_experts = 5; }), HasSubstr("argument num_experts"));
    EXPECT_THAT(said([](auto& d) { d.num_experts = 4096; }), HasSubstr("at most 2048 on GPUs"));
    EXPECT_THAT(said([](auto& d) { d.num_topk = 33; }), HasSubstr("argument topk_idx"));
    EXPECT_THAT(said([](auto& d) { d.num_tokens = 9; }), HasSubstr("at most 8 tokens"));
    EXPECT_THAT(said([](auto& d) { d.hidden = 100; }), HasSubstr("multiple of 16 bytes"));
    EXPECT_THAT(said([](auto& d) { d.max_tokens = 1 << 20; }),
                HasSubstr("the buffer is too small"));
    Dispatch d = normal_of(5);
    d.row_bytes = 8_MiB;
    EXPECT_THAT(
        buffer.begin(rank.device, d, nullptr, ticket, some<int32_t>(13), false, launch).message(),
        HasSubstr("room of"));
    Combine c;
    c.x = some(2);
    c.hidden = 256;
    c.biases[1] = some(3) + 4;
    EXPECT_THAT(buffer.combine(rank.device, c, some<int32_t>(13), ticket, launch).message(),
                HasSubstr("argument bias"));
    EXPECT_TRUE(ranks.launches.names_of(rank.rank()).empty());
  });
}

TEST(MoeGpuBuffer, HalvesOfDifferentSizesAreRefusedOnAllRanks) {
  sys::FakeCuda cuda(2);
  const Launches launches(cuda);
  braid::test::run_gpus(2, cuda, {}, [&](GpuRank& rank) {
    const auto made = Buffer::create(rank.device, kHalfBytes << rank.rank());
    EXPECT_EQ(made.status().code(), Code::kInvalidArgument) << made.status().to_string();
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

TEST(MoeGpuBuffer, BlocksAreAsManyAsHaveSomethingToDoAndNoMoreThanAsked) {
  Ranks ranks;
  ranks.run([&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
    const auto blocks_of = [&](int tokens, size_t hidden, int most) {
      LowLatencyDispatch d = dispatch_of(tokens);
      d.hidden = hidden;
      d.max_tokens = std::max(tokens, 1);
      auto sent = buffer.send(rank.device, d, some<Ticket>(20), {launch.stream, most});
      EXPECT_TRUE(sent.ok()) << sent.status().to_string();
      const uint32_t blocks = ranks.launches.last_of(rank.rank()).shape.num_blocks;
      const Status received =
          buffer.receive(rank.device, *sent, d, rows_of(), nullptr, some<Ticket>(20), launch);
      EXPECT_TRUE(received.ok()) << received.to_string();
      return blocks;
    };
    EXPECT_EQ(blocks_of(0, 256, 0), 1U);
    EXPECT_EQ(blocks_of(5, 256, 0), 1U);
    const uint32_t some_blocks = blocks_of(40, 4096, 0);
    EXPECT_GT(some_blocks, 10U);
    EXPECT_LT(some_blocks, kSms);
    EXPECT_EQ(blocks_of(40, 4096, 7), 7U);
    EXPECT_EQ(blocks_of(5, 256, 24), 1U);
  });
}

// Rows of one source to one expert may be so many that a number does not fit beside the expert's.
TEST(MoeGpuBuffer, MoreRowsThanAWordHoldsAreRefused) {
  Ranks ranks;
  ranks.run([&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
    LowLatencyDispatch d = dispatch_of(0);
    d.hidden = 8;
    d.num_experts = 2 * 1024;
    d.num_topk = 32;
    d.max_tokens = 1 << 16;
    EXPECT_THAT(buffer.send(rank.device, d, some<Ticket>(20), launch).status().to_string(),
                HasSubstr("the buffer is too small"));
    d.max_tokens = (1 << 16) + 1;
    EXPECT_THAT(buffer.send(rank.device, d, some<Ticket>(20), launch).status().to_string(),
                HasSubstr("num_max_dispatch_tokens_per_rank"));
  });
}

TEST(MoeGpuBuffer, ALaunchThatFailsLeavesNothingOpen) {
  Ranks ranks;
  ranks.run([&](GpuRank& rank, Buffer& buffer, const Launch& launch) {
    const sys::Stream none{some(99)};
    const LowLatencyDispatch d = dispatch_of(5);
    for (int times = 0; times < 3; ++times)
      EXPECT_FALSE(buffer.send(rank.device, d, some<Ticket>(20), {none, 0}).ok());
    const auto sent = buffer.send(rank.device, d, some<Ticket>(20), launch);
    EXPECT_TRUE(sent.ok()) << sent.status().to_string();
  });
}

TEST(MoeGpuBuffer, BlocksOfAllRanksFindAPlaceOnOneGpu) {
  sys::FakeCuda cuda(1);
  const Launches launches(cuda);
  constexpr int kRanks = 5;
  braid::test::run_gpu_comms(kRanks, {}, [&](comm::Comm& comm, std::barrier<>& all) {
    comm.state().config = braid::test::make_config(braid::test::gpu_options({}));
    auto device = comm::Device::create(comm.state(), cuda, {0, braid::test::small_arena(kRanks)});
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    auto made = Buffer::create(**device, kHalfBytes);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    LowLatencyDispatch d = dispatch_of(5);
    d.num_experts = kRanks;
    EXPECT_TRUE((*made)->send(**device, d, some<Ticket>(20), {{}, 1000}).ok());
    EXPECT_LE(launches.last_of(comm.rank()).shape.num_blocks, kSms / kRanks);
    all.arrive_and_wait();
    (*made)->close(**device);
    made->reset();
    (*device)->detach(true);
    all.arrive_and_wait();
  });
}

}  // namespace
}  // namespace braid::moe::gpu
