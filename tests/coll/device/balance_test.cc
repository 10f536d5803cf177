// Stage 2 on fake GPUs with modelled times: shares follow what the links can carry, all ranks cut
// every call at the same place, and every byte is right meanwhile.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "base/sanitizer.h"
#include "base/units.h"
#include "coll/device/collectives.h"
#include "coll/device/entry.h"
#include "coll/device/explain.h"
#include "coll/device/fake_sums.h"
#include "support/gpu_ranks.h"
#include "support/rows.h"
#include "support/tensors.h"
#include "support/timed_cuda.h"

namespace braid::coll::device {
namespace {

using test::GpuRank;
using test::GuardedMemory;
using test::TimedCuda;

constexpr uint64_t kBlock = 4_MiB;
constexpr int kWindow = 3;
constexpr double kTuned = 0.07;  // level, with TimedCuda's rates
const test::Options kOptions = {{"BRAID_GPU_SAMPLE", "1"}, {"BRAID_BALANCE_WINDOW", "3"}};

/// Bytes without a period; every rank and call reads them from a place of its own.
const std::byte* input(int rank, uint64_t call) {
  static const std::vector<uint64_t> words = [] {
    std::vector<uint64_t> made((2 * kBlock + 1_MiB) / sizeof(uint64_t));
    for (uint64_t i = 0; i < made.size(); ++i) made[i] = test::mixed(7, 0, i);
    return made;
  }();
  return reinterpret_cast<const std::byte*>(words.data()) +
         8 * (static_cast<uint64_t>(rank) * 8209 + call % 64 * 127);
}

/// All-gathers of one rank, each of them checked.
class Gatherer {
 public:
  explicit Gatherer(GpuRank& rank, uint64_t block = kBlock)
      : rank_(rank),
        block_(block),
        send_(rank.cuda, block),
        recv_(rank.cuda, block * static_cast<uint64_t>(rank.size())),
        stream_(sys::own<sys::OwnedStream>(rank.cuda,
                                           rank.cuda.create_stream(sys::StreamPriority::kNormal))
                    .value()) {}

  void call() {
    std::memcpy(send_.data(), input(rank_.rank(), num_calls_), block_);
    const Status status = on_device(rank_.comm, rank_.rank(), [&](comm::Device& device) {
      return all_gather(device, send_.get(), recv_.get(), block_, Dtype::kUint8, stream_.get());
    });
    ASSERT_TRUE(status.ok()) << status.to_string();
    rank_.all.arrive_and_wait();  // pushes go on after a rank's own call
    for (int r = 0; r < rank_.size(); ++r)
      if (std::memcmp(recv_.data() + static_cast<uint64_t>(r) * block_, input(r, num_calls_),
                      block_) != 0)
        ++num_wrong_;
    rank_.all.arrive_and_wait();
    ++num_calls_;
  }
  void windows(int count) {
    for (int i = 0; i < count * kWindow; ++i) call();
  }
  uint32_t parts() const {
    return rank_.device.links().main().shares().parts(plan::Op::kAllGather, block_);
  }
  double share() const { return static_cast<double>(parts()) / plan::kWhole; }
  uint64_t num_wrong() const { return num_wrong_; }
  sys::Stream stream() const { return stream_.get(); }

 private:
  GpuRank& rank_;
  const uint64_t block_;
  GuardedMemory send_, recv_;
  sys::OwnedStream stream_;
  uint64_t num_calls_ = 0, num_wrong_ = 0;
};

void start(GpuRank& rank, double tuned = kTuned) {
  for (const plan::Op op : plan::kAllOps) rank.device.links().main().shares().set_tuned(op, tuned);
  const Status status = rank.device.links().start(Deadline::after_ns(20_s));
  ASSERT_TRUE(status.ok()) << status.to_string();
}

/// One rank does something for all.
void once(GpuRank& rank, const std::function<void()>& what) {
  rank.all.arrive_and_wait();
  if (rank.rank() == 0) what();
  rank.all.arrive_and_wait();
}

class DeviceBalance : public testing::Test {
 protected:
  static void run(int size, TimedCuda& cuda, const std::function<void(GpuRank&)>& body,
                  const test::Options& options = kOptions) {
    test::define_team_kernels(cuda);
    test::define_sums(cuda);
    test::run_gpus(size, cuda, options, [&](GpuRank& rank) {
      body(rank);
      EXPECT_TRUE(rank.device.faults().status().ok()) << rank.device.faults().status().to_string();
      rank.all.arrive_and_wait();
    });
    EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
  }
};

// One rank's host link is loaded by others' copies, and later free again.
TEST_F(DeviceBalance, TheShareFollowsTheLoad) {
  TimedCuda cuda(2);
  run(2, cuda, [&](GpuRank& rank) {
    start(rank);
    Gatherer gather(rank);
    gather.windows(10);
    EXPECT_NEAR(gather.share(), kTuned, 0.015);
    once(rank, [&] { cuda.set_host_gbps(1, 6); });
    gather.windows(10);
    EXPECT_EQ(gather.share(), 0);
    once(rank, [&] { cuda.set_host_gbps(1, 33); });
    gather.windows(60);
    EXPECT_NEAR(gather.share(), kTuned, 0.02);
    EXPECT_EQ(gather.num_wrong(), 0u);
    const auto summary = test::balance_summary(rank.device);
    EXPECT_EQ(summary->calls, 80u * kWindow);
    EXPECT_GE(summary->windows, 70u);
    EXPECT_GE(summary->moves, 4u);
    EXPECT_EQ(summary->trials, 1u);
  });
}

// Rates of every rank change at random now and then, and so does how late events are seen: after
// every call all ranks hold the same share, and a signature would say if one had cut elsewhere.
TEST_F(DeviceBalance, RanksThatMeasureOtherTimesAgree) {
  constexpr int kSize = 3;
  TimedCuda cuda(kSize);
  std::mutex mutex;
  std::vector<std::vector<uint32_t>> held(kSize);
  run(kSize, cuda, [&](GpuRank& rank) {
    start(rank, 0.35);  // more than any of the rates asks for, and so never in the way
    Gatherer gather(rank);
    std::mt19937 random(static_cast<unsigned>(rank.rank()));
    std::vector<uint32_t> mine;
    for (int call = 0; call < (kIsThreadSanitized ? 75 : 150); ++call) {
      if (call % 25 == 0) {
        cuda.set_host_gbps(rank.rank(), 5 + static_cast<double>(random() % 100));
        cuda.set_nvlink_gbps(rank.rank(), 200 + static_cast<double>(random() % 200));
      }
      cuda.set_lateness(static_cast<int>(random() % 3));
      gather.call();
      mine.push_back(gather.parts());
    }
    EXPECT_EQ(gather.num_wrong(), 0u);
    const std::lock_guard lock(mutex);
    held[static_cast<size_t>(rank.rank())] = std::move(mine);
  });
  EXPECT_EQ(held[1], held[0]);
  EXPECT_EQ(held[2], held[0]);
  EXPECT_GT(std::set<uint32_t>(held[0].begin(), held[0].end()).size(), 3u) << "nothing moved";
}

// Tuning looked at whole calls, and found that more is not better; times at which links are done do
// not tell.
TEST_F(DeviceBalance, TheShareIsNeverMoreThanTuningFound) {
  TimedCuda cuda(2);
  run(2, cuda, [&](GpuRank& rank) {
    start(rank, kTuned / 2);
    Gatherer gather(rank);
    const uint32_t tuned = gather.parts();
    // The last for long enough that a link which was left out is tried.
    for (const auto& [gbps, windows] : {std::pair{100., 10}, {6., 10}, {100., 60}}) {
      once(rank, [&] { cuda.set_host_gbps(0, gbps), cuda.set_host_gbps(1, gbps); });
      for (int i = 0; i < windows; ++i) {
        gather.windows(1);
        ASSERT_LE(gather.parts(), tuned);
      }
    }
    EXPECT_GT(gather.parts(), 0u);
  });
}

// A graph's copies have their sizes baked in: what is captured keeps the share in force, changes
// nothing, and is not timed.
TEST_F(DeviceBalance, CapturedCallsKeepTheShareInForce) {
  TimedCuda cuda(2);
  run(2, cuda, [&](GpuRank& rank) {
    start(rank);
    Gatherer gather(rank);
    gather.windows(3);
    once(rank, [&] { cuda.set_host_gbps(0, 1); });
    gather.call();
    const uint32_t before = gather.parts();
    const auto counted = test::balance_summary(rank.device);
    const uint64_t timed = cuda.num_timed();
    once(rank, [] {});
    cuda.set_captured(gather.stream(), true);
    for (int call = 0; call < 40; ++call) {
      gather.call();
      EXPECT_EQ(gather.parts(), before);
    }
    EXPECT_EQ(test::balance_summary(rank.device)->calls, counted->calls);
    EXPECT_EQ(cuda.num_timed(), timed);
    rank.all.arrive_and_wait();
    cuda.set_captured(gather.stream(), false);
    gather.windows(10);
    EXPECT_LT(gather.parts(), before) << "eager calls go on";
    EXPECT_EQ(gather.num_wrong(), 0u);
  });
}

TEST_F(DeviceBalance, SizeClassesAndOperationsAreApart) {
  TimedCuda cuda(2);
  run(2, cuda, [&](GpuRank& rank) {
    start(rank);
    Gatherer small(rank, 4_MiB), large(rank, 6_MiB);
    small.windows(3);
    large.windows(3);
    const uint32_t large_before = large.parts();
    once(rank, [&] { cuda.set_host_gbps(0, 1); });
    small.windows(10);
    EXPECT_EQ(small.parts(), 0u);
    EXPECT_EQ(large.parts(), large_before);
    large.windows(10);
    EXPECT_EQ(large.parts(), 0u);
    EXPECT_GT(rank.device.links().main().shares().parts(plan::Op::kAllToAll, 4_MiB), 0u);
    EXPECT_EQ(small.num_wrong() + large.num_wrong(), 0u);
  });
}

// Two comms on the same GPUs at the same time: each has numbers, samples and shares of its own.
TEST_F(DeviceBalance, SeveralCommsAreApart) {
  TimedCuda cuda(2);
  test::define_team_kernels(cuda);
  const auto one_comm = [&](double tuned) {
    test::run_gpus(2, cuda, kOptions, [&](GpuRank& rank) {
      start(rank, tuned);
      Gatherer gather(rank);
      gather.windows(10);
      EXPECT_EQ(gather.num_wrong(), 0u);
      EXPECT_EQ(test::balance_summary(rank.device)->calls, 10u * kWindow);
      EXPECT_EQ(test::balance_summary(rank.device)->moved.empty(), tuned == kTuned);
      EXPECT_TRUE(rank.device.faults().status().ok()) << rank.device.faults().status().to_string();
      rank.all.arrive_and_wait();
    });
  };
  std::thread other([&] { one_comm(0.16); });
  one_comm(kTuned);
  other.join();
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

TEST_F(DeviceBalance, OptionsSwitchItOff) {
  for (const auto& [name, value] : {std::pair("BRAID_GPU_SAMPLE", "0"), {"BRAID_BALANCE", "off"}}) {
    TimedCuda cuda(2);
    const auto body = [&](GpuRank& rank) {
      start(rank, 0.16);
      Gatherer gather(rank);
      const uint32_t tuned = gather.parts();
      gather.windows(10);
      EXPECT_EQ(gather.parts(), tuned);
      EXPECT_FALSE(test::balance_summary(rank.device).has_value());
      EXPECT_EQ(cuda.num_timed(), 0u);
      EXPECT_NE(rank.comm.health_json().find(R"("balance":{"on":false})"), std::string::npos);
    };
    test::Options options = kOptions;
    options[name] = value;
    run(2, cuda, body, options);
  }
}

// Not all calls are timed, and those that cannot use the host link never.
TEST_F(DeviceBalance, OneInSoManyCallsIsTimed) {
  TimedCuda cuda(2);
  run(2, cuda,
      [&](GpuRank& rank) {
        start(rank);
        Gatherer gather(rank), little(rank, 1_MiB);
        for (int call = 0; call < 12; ++call) {
          gather.call();
          little.call();
        }
        EXPECT_EQ(test::balance_summary(rank.device)->calls, 12u);
        EXPECT_EQ(test::balance_summary(rank.device)->samples, 3u);
        rank.all.arrive_and_wait();
        EXPECT_EQ(cuda.num_timed(), 2u * 3 * comm::kNumCallStages);
      },
      {{"BRAID_GPU_SAMPLE", "4"}});
}

TEST_F(DeviceBalance, WhatIsForcedStays) {
  TimedCuda cuda(2);
  run(2, cuda, [&](GpuRank& rank) {
    start(rank);
    Gatherer gather(rank);
    gather.windows(1);
    rank.device.links().main().shares().force(plan::Op::kAllGather, 0.25);
    gather.windows(10);
    EXPECT_EQ(gather.parts(), plan::kWhole / 4);
    rank.device.links().main().shares().force(plan::Op::kAllGather, std::nullopt);
    once(rank, [&] { cuda.set_host_gbps(0, 1); });
    gather.windows(10);
    EXPECT_EQ(gather.parts(), 0u);
    EXPECT_EQ(gather.num_wrong(), 0u);
  });
}

TEST_F(DeviceBalance, OtherOptionsOnARankAreRefusedByAll) {
  TimedCuda cuda(2);
  run(2, cuda, [&](GpuRank& rank) {
    if (rank.rank() == 1) {
      test::Options options = kOptions;
      options["BRAID_GPU_SAMPLE"] = "0";
      rank.comm.state().config = test::make_config(test::gpu_options(options));
    }
    const Status status = rank.device.links().start(Deadline::after_ns(20_s));
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.to_string();
    EXPECT_FALSE(test::balance_summary(rank.device).has_value());
  });
}

TEST_F(DeviceBalance, IsToldByHealthAndExplain) {
  TimedCuda cuda(2);
  run(2, cuda, [&](GpuRank& rank) {
    start(rank);
    Gatherer gather(rank);
    once(rank, [&] { cuda.set_host_gbps(0, 1); });
    gather.windows(10);
    const auto health = nlohmann::json::parse(rank.comm.health_json());
    const auto& balance = health["gpu"]["balance"];
    EXPECT_EQ(balance["on"], true);
    EXPECT_EQ(balance["calls"], 10 * kWindow);
    ASSERT_EQ(balance["shares"].size(), 1u);
    EXPECT_EQ(balance["shares"][0]["op"], "all_gather");
    EXPECT_EQ(balance["shares"][0]["up_to_bytes"], kBlock);
    EXPECT_EQ(balance["shares"][0]["now"], 0);
    EXPECT_NEAR(balance["shares"][0]["tuned"].get<double>(), kTuned, 1e-4);
    const auto told = explain(rank.comm, plan::Op::kAllGather, 2 * kBlock);
    ASSERT_TRUE(told.ok()) << told.status().to_string();
    EXPECT_EQ(told.value().links[1].share, 0);
    EXPECT_EQ(told.value().moves, balance["moves"].get<uint64_t>());
    EXPECT_NE(to_words(told.value()).find("tuned to 7.0 %"), std::string::npos);
    const auto json = nlohmann::json::parse(to_json(told.value()));
    EXPECT_EQ(json["balance"]["windows"], balance["windows"]);
    const std::string events = health["events"].dump();
    EXPECT_EQ(events.find("from pcie to nvlink") != std::string::npos, rank.rank() == 0) << events;
  });
}

// Every operation, whatever its blocks are cut into, with shares that move all the time.
TEST_F(DeviceBalance, SumsAndBroadcastsAreTimedToo) {
  constexpr uint64_t kFloats = 2 * kBlock / sizeof(float);
  const test::Rows<float> rows(2, kFloats);
  TimedCuda cuda(2);
  run(2, cuda, [&](GpuRank& rank) {
    start(rank);
    GuardedMemory send(cuda, 2 * kBlock), recv(cuda, 2 * kBlock);
    const auto values = [](GuardedMemory& memory) {
      return reinterpret_cast<float*>(memory.data());
    };
    for (uint64_t call = 0; call < 40; ++call) {
      std::memcpy(send.data(), rows.of(rank.rank(), call), 2 * kBlock);
      rank.all.arrive_and_wait();
      const Status status = on_device(rank.comm, rank.rank(), [&](comm::Device& device) {
        BRAID_RETURN_IF_ERROR(all_reduce(device, send.get(), recv.get(), kFloats, Dtype::kFloat32,
                                         RedOp::kSum, device.links().base().stream()));
        return broadcast(device, send.get(), send.get(), kFloats, Dtype::kFloat32, 0,
                         device.links().base().stream());
      });
      ASSERT_TRUE(status.ok()) << status.to_string();
      rank.all.arrive_and_wait();
      ASSERT_EQ(test::first_wrong(values(recv), rows.sum(2, call), kFloats), kFloats)
          << "sum of call " << call;
      ASSERT_EQ(test::first_wrong(values(send), rows.of(0, call), kFloats), kFloats)
          << "broadcast of call " << call;
    }
    const auto summary = test::balance_summary(rank.device);
    EXPECT_EQ(summary->calls, 80u);
    EXPECT_GE(summary->windows, 16u) << "samples of a kind are missing";
  });
}

}  // namespace
}  // namespace braid::coll::device
