// What a Device says when the system has no thread for it. What the watch finds: device_test.cc.
#include "comm/device/fault_watch.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/device/device.h"
#include "comm/device/links/proxy.h"
#include "support/alone.h"
#include "support/gpu_ranks.h"

namespace braid::comm {
namespace {

TEST(DeviceThreads, DISABLED_WithoutThreads) {
  sys::FakeCuda cuda(1);
  test::define_team_kernels(cuda);
  const auto hub = std::make_shared<test::ThreadHub>(1);
  const Config config = test::make_config(test::gpu_options({}));
  auto comm = Comm::create(std::make_unique<test::ThreadGroup>(hub, 0), config);
  ASSERT_TRUE(comm.ok());
  test::forbid_threads();
  const auto device =
      Device::create(comm.value()->state(), cuda, {.ordinal = 0, .arena = test::small_arena(1)});
  EXPECT_EQ(device.status().code(), Code::kExhausted) << device.status().to_string();
  EXPECT_EQ(Proxy(nullptr).begin().code(), Code::kExhausted);
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
  test::end_alone();
}

// Else the parent's next word in it could go to a copy that the GPU does not see.
TEST(FaultWatch, ItsPageStaysTheSameOneOverAFork) {
  sys::FakeCuda cuda(1);
  ASSERT_TRUE(cuda.use_device(0).ok());
  const auto hub = std::make_shared<test::ThreadHub>(1);
  test::ThreadGroup group(hub, 0);
  auto watch = FaultWatch::create(group, cuda, 0);
  ASSERT_TRUE(watch.ok()) << watch.status().to_string();
  nvlink::Team team{};
  watch.value()->give_page_to(team);
  volatile auto* const word = &team.fault->code;
  const pid_t child = ::fork();
  if (child == 0) {
    *word = 7;
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(static_cast<uint32_t>(*word), 7u);
}

TEST(DeviceThreads, WantOfThemIsAStatus) {
  test::run_alone("DeviceThreads.DISABLED_WithoutThreads");
}

}  // namespace
}  // namespace braid::comm
