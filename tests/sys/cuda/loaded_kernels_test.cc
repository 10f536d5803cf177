#include "sys/cuda/loaded_kernels.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "sys/cuda/fake.h"

namespace braid::sys {
namespace {

constexpr std::array<std::byte, 1> kOne{}, kOther{};

class LoadedKernelsTest : public testing::Test {
 protected:
  LoadedKernelsTest() {
    for (const char* name : {"copy", "sum"})
      cuda_.define_kernel(name, [](const LaunchShape&, std::span<void*>) { return Status(); });
    EXPECT_TRUE(cuda_.use_device(0).ok());
  }
  uint64_t modules() const { return cuda_.alive().modules; }
  FakeCuda cuda_{2};
};

TEST_F(LoadedKernelsTest, AreLoadedOnceForAllWhoAsk) {
  auto first = LoadedKernels::of(cuda_, 0);
  const Kernel copy = first->find(kOne, "copy", 0).value();
  auto second = LoadedKernels::of(cuda_, 0);
  EXPECT_EQ(second->find(kOne, "copy", 0)->handle, copy.handle);
  EXPECT_TRUE(second->find(kOne, "sum", 0).ok());
  EXPECT_EQ(modules(), 1U);
  EXPECT_TRUE(second->find(kOther, "another's", 0).status().code() != Code::kOk);
  first.reset();
  EXPECT_GE(modules(), 1U) << "somebody uses them";
  second.reset();
  EXPECT_EQ(modules(), 0U);
}

TEST_F(LoadedKernelsTest, EveryGpuHasItsOwn) {
  const auto here = LoadedKernels::of(cuda_, 0), there = LoadedKernels::of(cuda_, 1);
  EXPECT_NE(here, there);
  EXPECT_TRUE(here->find(kOne, "copy", 0).ok());
  ASSERT_TRUE(cuda_.use_device(1).ok());
  EXPECT_TRUE(there->find(kOne, "copy", 0).ok());
  EXPECT_EQ(modules(), 2U);
}

TEST_F(LoadedKernelsTest, NothingOfWhatFailedIsKept) {
  const auto kernels = LoadedKernels::of(cuda_, 0);
  cuda_.fail("load_module", 0, driver_error("no memory"));
  EXPECT_EQ(kernels->find(kOne, "copy", 0).status().code(), Code::kDriver);
  cuda_.fail("kernel", 0, driver_error("no such kernel"));
  EXPECT_EQ(kernels->find(kOne, "copy", 0).status().code(), Code::kDriver);
  cuda_.fail("allow_shared_bytes", 0, driver_error("too much"));
  EXPECT_EQ(kernels->find(kOne, "copy", 64).status().code(), Code::kDriver);
  EXPECT_TRUE(kernels->find(kOne, "copy", 64).ok());
  EXPECT_EQ(modules(), 1U);
}

// A comm of two ranks may ask for more than one of eight that is made beside it.
TEST_F(LoadedKernelsTest, SharedBytesAreNeverTakenBack) {
  const auto kernels = LoadedKernels::of(cuda_, 0);
  ASSERT_TRUE(kernels->find(kOne, "copy", 64).ok());
  cuda_.fail("allow_shared_bytes", 0, internal_error("less was asked for"));
  EXPECT_TRUE(kernels->find(kOne, "copy", 32).ok());
  EXPECT_TRUE(kernels->find(kOne, "copy", 0).ok());
  EXPECT_FALSE(kernels->find(kOne, "copy", 128).ok());
}

TEST_F(LoadedKernelsTest, ThreadsMayAskAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      EXPECT_TRUE(cuda_.use_device(0).ok());
      for (int i = 0; i < 50; ++i) {
        const auto kernels = LoadedKernels::of(cuda_, 0);
        EXPECT_TRUE(kernels->find(kOne, "copy", 0).ok());
        EXPECT_TRUE(kernels->find(kOther, "sum", 0).ok());
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(modules(), 0U);
}

}  // namespace
}  // namespace braid::sys
