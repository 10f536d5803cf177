// No rank loads a kernel once the first call of any may run.
#include "coll/device/preload.h"

#include <gtest/gtest.h>

#include <string>

#include "coll/device/all_kernels.h"
#include "coll/device/call_timer.h"
#include "coll/device/direct.h"
#include "coll/device/lines.h"
#include "coll/device/relay.h"
#include "coll/device/sums.h"
#include "coll/reduce/reduce_names.h"
#include "support/gpu_ranks.h"

namespace braid::coll::device {
namespace {

using test::GpuRank;

/// Every kind of call, by each path.
Status find_all_kernels(comm::Device& device) {
  for (const plan::Op op : {plan::Op::kAllGather, plan::Op::kAllToAll, plan::Op::kBroadcast,
                            plan::Op::kAllReduce, plan::Op::kReduceScatter})
    for (const Dtype dtype : kAllDtypes)
      for (const RedOp redop : kAllRedOps) {
        const CollectiveCall call{op, 0, 0, 0, dtype, redop};
        BRAID_RETURN_IF_ERROR(packet_kernel(device, call).status());
        for (const int num_ranks : {device.size(), 2, 5, 16})  // those of comms made beside it, too
          BRAID_RETURN_IF_ERROR(line_kernel(device, call, num_ranks).status());
        BRAID_RETURN_IF_ERROR(direct_kernel(device, call).status());
        BRAID_RETURN_IF_ERROR(sum_kernel(device, {dtype, redop, 16}).status());
      }
  BRAID_RETURN_IF_ERROR(longest_pause_kernel(device).status());
  return relay_kernel(device).status();
}

// scripts/check_sass.py compares the names that it notes with those of the compiled kernels.
TEST(Preload, NothingIsLoadedAfterwards) {
  constexpr int kSize = 2;
  sys::FakeCuda cuda(kSize);
  test::define_team_kernels(cuda);
  test::define_all_kernels(cuda);
  test::run_gpus(kSize, cuda, {}, [&](GpuRank& rank) {
    const Status loaded = preload_kernels(rank.device);
    EXPECT_TRUE(loaded.ok()) << loaded.to_string();
    rank.all.arrive_and_wait();
    const uint64_t modules = cuda.alive().modules;
    rank.all.arrive_and_wait();
    if (rank.rank() == 0) cuda.fail("kernel", 0, internal_error("a kernel was looked for late"));
    rank.all.arrive_and_wait();
    const Status found = find_all_kernels(rank.device);
    EXPECT_TRUE(found.ok()) << found.to_string();
    EXPECT_EQ(cuda.alive().modules, modules);
  });
  std::string names;
  for (const std::string& name : cuda.kernels_found()) names += name + " ";
  RecordProperty("kernels", names);
}

TEST(Preload, AKernelThatIsMissingIsTold) {
  sys::FakeCuda cuda(2);
  test::define_team_kernels(cuda);
  test::define_all_kernels(cuda);
  test::run_gpus(2, cuda, {}, [&](GpuRank& rank) {
    rank.all.arrive_and_wait();
    if (rank.rank() == 0) cuda.fail("kernel", 0, driver_error("no such kernel"));
    rank.all.arrive_and_wait();
    if (rank.rank() != 0) return;
    EXPECT_EQ(preload_kernels(rank.device).code(), Code::kDriver);
  });
}

}  // namespace
}  // namespace braid::coll::device
