// The first call of a comm with device memory, and what is left where it fails. On fake GPUs.
#include "coll/device/entry.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <filesystem>

#include "coll/device/all_kernels.h"
#include "coll/device/fake_sums.h"
#include "support/gpu_ranks.h"
#include "sys/host/api.h"

namespace braid::coll::device {
namespace {

namespace fs = std::filesystem;

constexpr int kTwo = 2;

class FirstCall : public testing::Test {
 protected:
  FirstCall() {
    test::define_all_kernels(cuda_);
    test::define_team_kernels(cuda_);
    test::define_sums(cuda_);
  }
  ~FirstCall() override { fs::remove_all(folder_); }

  /// Of each rank.
  void attach_all(const std::function<void(comm::Comm&, const Status&)>& look) {
    const test::Options options = {{"BRAID_CACHE_DIR", folder_.string()}, {"BRAID_TUNE", "force"}};
    test::run_gpu_comms(kTwo, {}, [&](comm::Comm& comm, std::barrier<>& all) {
      comm.state().config = test::make_config(test::gpu_options(options));
      const auto scope = sys::CurrentDevice::use(cuda_, comm.rank());
      ASSERT_TRUE(scope.ok());
      look(comm, attach(comm.state(), cuda_, comm.rank()));
      all.arrive_and_wait();
    });
  }
  /// Looks for other programs: the `nth` that any rank takes meets a failure of the driver.
  void fail_look(int nth) {
    cuda_.define_kernel("braid_longest_pause", [this, nth](const auto&, std::span<void*> args) {
      *test::argument<int64_t*>(args, 0) = 0;
      return num_looks_++ == nth ? driver_error("the GPU is gone") : Status();
    });
  }
  sys::FakeCuda cuda_{kTwo};

 private:
  const fs::path folder_ =
      fs::temp_directory_path() / ("braid_entry_" + std::to_string(sys::process_id()));
  std::atomic<int> num_looks_ = 0;
};

// The other waited for it until its deadline, and both gave memory back that the other's calls
// could still write to.
TEST_F(FirstCall, WhatOneRankMeetsAmidTuningEndsTheCommOnAllAtOnce) {
  fail_look(1);
  std::atomic<int> num_driver_errors = 0;
  attach_all([&](comm::Comm& comm, const Status& status) {
    EXPECT_EQ(status.code(), Code::kDriver) << status.to_string();
    num_driver_errors += status.code() == Code::kDriver ? 1 : 0;
    EXPECT_NE(comm.state().device, nullptr) << "its memory stays until the comm is closed";
    EXPECT_EQ(comm.state().fatal.code(), Code::kDriver);
    const Status later = on_device(comm, comm.rank(), [](comm::Device&) { return Status(); });
    EXPECT_EQ(later.code(), Code::kDriver) << later.to_string();
  });
  EXPECT_EQ(num_driver_errors, kTwo);
  EXPECT_EQ(cuda_.alive(), sys::FakeCudaCounts{});
}

TEST_F(FirstCall, AKernelThatIsMissingOnOneRankLeavesTheCommAsItWas) {
  cuda_.fail("kernel", 40, driver_error("no such kernel"));
  attach_all([&](comm::Comm& comm, const Status& status) {
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(comm.state().device, nullptr);
    EXPECT_TRUE(comm.state().fatal.ok());
    EXPECT_FALSE(comm.state().group->broken());
  });
  EXPECT_EQ(cuda_.alive(), sys::FakeCudaCounts{});
}

}  // namespace
}  // namespace braid::coll::device
