// What a Device says when the system has no thread for it. What the watch finds: device_test.cc.
#include "comm/device/fault_watch.h"

#include <gtest/gtest.h>

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

TEST(DeviceThreads, WantOfThemIsAStatus) {
  test::run_alone("DeviceThreads.DISABLED_WithoutThreads");
}

}  // namespace
}  // namespace braid::comm
