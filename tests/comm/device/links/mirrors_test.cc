// The NIC's part of a Device: when it is on, what it says, how much it may carry, and what becomes
// of what cannot be had.
#include "comm/device/links/mirrors.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/units.h"
#include "fabric/merge.h"
#include "support/fake_machine.h"
#include "support/gpu_ranks.h"
#include "sys/fabric/fake.h"

namespace braid::comm {
namespace {

using test::GpuRank;

const test::Options kSmallSlots = {{"BRAID_GPU_SLOT", "1KiB"}, {"BRAID_GPU_SLOTS", "2"}};

/// Beside links that carry `taken_parts` of plan::kWhole.
uint64_t part(const DeviceLink& nic, plan::Op op, uint64_t bytes, uint32_t taken_parts) {
  const auto taken = static_cast<uint64_t>(static_cast<double>(bytes) * taken_parts / plan::kWhole);
  return nic.part({op, bytes, bytes, 1, taken});
}

test::Options small_slots(test::Options options) {
  options.insert(kSmallSlots.begin(), kSmallSlots.end());
  return options;
}

std::unique_ptr<sys::FakeCuda> make_gpus(int size) {
  auto cuda = std::make_unique<sys::FakeCuda>(size);
  test::define_team_kernels(*cuda);
  return cuda;
}

TEST(DeviceRdma, BouncesThroughHostMemoryAndSaysSo) {
  const auto cuda = make_gpus(2);
  sys::FakeFabric nics;
  test::run_gpus(
      2, *cuda, small_slots({{"BRAID_GPU_RDMA", "on"}}),
      [&](GpuRank& rank) {
        EXPECT_TRUE(test::nic_of(rank.device).state().is_on);
        EXPECT_EQ(test::nic_of(rank.device).state().how,
                  "pinned bounce: tcp at 127.0.0.1 is no NIC");
        EXPECT_NE(rank.comm.health_json().find(R"("rdma":{"on":true,"how":"pinned bounce)"),
                  std::string::npos)
            << rank.comm.health_json();
      },
      &nics);
  EXPECT_EQ(cuda->alive(), sys::FakeCudaCounts{});
  EXPECT_EQ(nics.num_refused(), 0U);
}

// A NIC without a share costs nothing: no thread, no memory.
TEST(DeviceRdma, IsClosedWhenItIsToCarryNothing) {
  for (const char* percent : {"0", "10"}) {
    const auto cuda = make_gpus(2);
    sys::FakeFabric nics;
    test::run_gpus(
        2, *cuda, small_slots({{"BRAID_GPU_RDMA", "on"}, {"BRAID_GPU_RDMA_SHARE", percent}}),
        [&](GpuRank& rank) {
          const bool carries = std::string_view(percent) == "10";
          EXPECT_TRUE(test::nic_of(rank.device)
                          .start(rank.device.links().base(), Deadline::after_ns(1_s))
                          .ok());
          EXPECT_EQ(test::nic_of(rank.device).state().is_on, carries);
          EXPECT_EQ(test::nic_of(rank.device).state().how.starts_with("off: neither tuning"),
                    !carries)
              << test::nic_of(rank.device).state().how;
          EXPECT_EQ(part(test::nic_of(rank.device), plan::Op::kAllGather, 4_MiB, 0) > 0, carries);
          rank.all.arrive_and_wait();
        },
        &nics);
    EXPECT_EQ(cuda->alive(), sys::FakeCudaCounts{});
  }
}

TEST(DeviceRdma, OneRankHasNoUseForIt) {
  const auto cuda = make_gpus(1);
  test::run_gpus(1, *cuda, {{"BRAID_GPU_RDMA", "on"}}, [&](GpuRank& rank) {
    EXPECT_EQ(test::nic_of(rank.device).state().how, "off: one rank");
  });
}

// Whole slots on all lanes, only of operations that can, and no more than is asked for.
TEST(DeviceRdma, CarriesWholeSlotsOfWhatItCan) {
  const auto cuda = make_gpus(2);
  sys::FakeFabric nics;
  test::run_gpus(
      2, *cuda,
      small_slots(
          {{"BRAID_GPU_RDMA", "on"}, {"BRAID_GPU_RDMA_SHARE", "25"}, {"BRAID_GPU_LANES", "4"}}),
      [&](GpuRank& rank) {
        DeviceLink& nic = test::nic_of(rank.device);
        const auto unit = static_cast<uint64_t>(1024 * 4);
        EXPECT_EQ(part(nic, plan::Op::kAllGather, 4_MiB, 0), 1_MiB);
        EXPECT_EQ(part(nic, plan::Op::kAllGather, 4_MiB + 2 * unit, 0), 1_MiB);
        EXPECT_EQ(part(nic, plan::Op::kAllToAll, 4_MiB + 4 * unit, 0), 1_MiB + unit);
        EXPECT_EQ(part(nic, plan::Op::kBroadcast, 3 * unit, 0), 0U);
        EXPECT_EQ(part(nic, plan::Op::kAllReduce, 4_MiB, 0), 0U);
        EXPECT_EQ(part(nic, plan::Op::kReduceScatter, 4_MiB, 0), 0U);
        EXPECT_EQ(part(nic, plan::Op::kAllGather, 4_MiB, plan::kWhole), 0U);
        EXPECT_EQ(nic.tuning(), LinkTuning::kNone) << "its share is given";
      },
      &nics);
}

/// Two ranks on nodes like this with NICs that are fake; every rank's Device, or why there is none.
void make_on(const fabric::Node& node, const test::Options& options, sys::FakeFabric& nics,
             sys::FakeCuda& cuda,
             const std::function<void(Comm&, Result<std::unique_ptr<Device>>&)>& body) {
  test::run_gpu_comms(2, {}, [&](Comm& comm, std::barrier<>& all) {
    comm.state().fabric = fabric::merge({node, node});
    comm.state().config = test::make_config(test::gpu_options(options));
    auto made =
        Device::create(comm.state(), cuda, {comm.rank(), {0, {{"packets", 256, 256}}}, &nics});
    body(comm, made);
    all.arrive_and_wait();
    if (made.ok()) made.value()->detach(true);
    all.arrive_and_wait();
    if (made.ok()) made.value().reset();
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

TEST(DeviceRdma, IsOffWithoutANicAndSaysSo) {
  const auto cuda = make_gpus(2);
  sys::FakeFabric nics;
  fabric::Node laptop;
  laptop.name = "laptop";
  make_on(laptop, small_slots({{"BRAID_GPU_RDMA", "auto"}, {"BRAID_GPU_RDMA_SHARE", "50"}}), nics,
          *cuda, [&](Comm&, auto& made) {
            ASSERT_TRUE(made.ok()) << made.status().to_string();
            const DeviceLink& nic = test::nic_of(*made.value());
            EXPECT_FALSE(nic.state().is_on);
            EXPECT_TRUE(nic.state().how.starts_with("off: no NIC (laptop")) << nic.state().how;
            EXPECT_EQ(part(nic, plan::Op::kAllGather, 64_MiB, 0), 0U);
          });
}

TEST(DeviceRdma, ANicIsUsedWithinWhatTheX16Carries) {
  const auto cuda = make_gpus(2);
  sys::FakeFabric nics;
  make_on(test::FakeMachine().node(),
          small_slots({{"BRAID_GPU_RDMA", "auto"}, {"BRAID_GPU_RDMA_SHARE", "90"}}), nics, *cuda,
          [&](Comm&, auto& made) {
            ASSERT_TRUE(made.ok()) << made.status().to_string();
            const DeviceLink& nic = test::nic_of(*made.value());
            EXPECT_EQ(nic.state().how, "pinned bounce: NIC mlx5_0 cannot reach GPU memory");
            const uint64_t alone = part(nic, plan::Op::kAllGather, 256_MiB, 0);
            const uint64_t beside = part(nic, plan::Op::kAllGather, 256_MiB, plan::kWhole / 10);
            EXPECT_GT(alone, beside);
            EXPECT_GT(beside, 0U);
            EXPECT_LT(alone, 64_MiB) << "ninety percent were asked for";
            EXPECT_EQ(part(nic, plan::Op::kAllGather, 256_MiB, plan::kWhole / 2), 0U);
          });
}

// NICs that do not reach each other: found ones are left out soon, and cost nobody its comm.
TEST(DeviceRdma, NicsThatDoNotReachEachOtherAreLeftOut) {
  const auto cuda = make_gpus(2);
  sys::FakeFabric nics({.busy_percent = 100});
  const int64_t start_ns = now_ns();
  make_on(test::FakeMachine().node(), small_slots({{"BRAID_GPU_RDMA", "auto"}}), nics, *cuda,
          [&](Comm&, auto& made) {
            ASSERT_TRUE(made.ok()) << made.status().to_string();
            const std::string words = test::nic_of(*made.value()).state().how;
            EXPECT_NE(words.find("cannot be reached"), std::string::npos) << words;
          });
  EXPECT_LT(now_ns() - start_ns, 10_s);
}

TEST(DeviceRdma, ANicThatCannotBeOpenedIsLeftOutOrAnError) {
  for (const char* wish : {"auto", "on"}) {
    const auto cuda = make_gpus(2);
    sys::FakeFabric nics;
    nics.forbid("10.0.0.1");
    make_on(test::FakeMachine().node(), small_slots({{"BRAID_GPU_RDMA", wish}}), nics, *cuda,
            [&](Comm&, auto& made) {
              const bool must_be = std::string_view(wish) == "on";
              EXPECT_EQ(made.status().code(), must_be ? Code::kUnavailable : Code::kOk);
              const std::string why =
                  must_be ? made.status().message() : test::nic_of(*made.value()).state().how;
              EXPECT_NE(why.find("no interface at 10.0.0.1"), std::string::npos) << why;
            });
  }
}

// Whatever the driver refuses to one rank while mirrors are pinned: all ranks get the same verdict,
// and nothing is left.
TEST(DeviceRdma, AFailureOfOneRankIsEveryones) {
  struct Calls {
    const char* method;
    uint64_t first, most;
  };
  for (const Calls& fault : {Calls{"register_host", 5, 10}, Calls{"alloc", 3, 6},
                             Calls{"fill", 5, 8}, Calls{"synchronize", 1, 4}})
    for (uint64_t n = fault.first; n <= fault.most; ++n) {
      SCOPED_TRACE(fmt::format("{} {}", fault.method, n));
      const auto cuda = make_gpus(2);
      sys::FakeFabric nics;
      cuda->fail(fault.method, n, driver_error("call {} broke", n));
      std::atomic<int> num_made{0};
      make_on({}, small_slots({{"BRAID_GPU_RDMA", "on"}}), nics, *cuda, [&](Comm&, auto& made) {
        num_made += made.ok() ? 1 : 0;
        const bool is_told = made.status().message().find("broke") != std::string::npos;
        EXPECT_TRUE(made.ok() || is_told) << made.status().to_string();
      });
      EXPECT_NE(num_made, 1);
    }
}

}  // namespace
}  // namespace braid::comm
