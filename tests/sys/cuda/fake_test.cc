#include "sys/cuda/fake.h"

#include <gtest/gtest.h>

#include <thread>

#include "sys/cuda/launch.h"
#include "sys/cuda/owned.h"

namespace braid::sys {
namespace {

class FakeCudaTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(cuda_.use_device(1).ok()); }
  void TearDown() override { EXPECT_EQ(cuda_.alive(), FakeCudaCounts{}); }
  FakeCuda cuda_{2};
};

TEST_F(FakeCudaTest, FailsTheCallThatItWasTold) {
  cuda_.fail("alloc", 1, exhausted("fake cuda: alloc: full"));
  const auto first = own<DeviceMemory>(cuda_, cuda_.alloc(1));
  EXPECT_TRUE(first.ok());
  EXPECT_EQ(cuda_.alloc(1).status().code(), Code::kExhausted);
  EXPECT_TRUE(own<DeviceMemory>(cuda_, cuda_.alloc(1)).ok());
}

// It answered the loss of a mode that it had not changed with kRelaxed, for good.
TEST_F(FakeCudaTest, AModeThatCouldNotBeRelaxedStaysAsItIs) {
  cuda_.fail("exchange_capture_mode", 0, driver_error("no context"));
  {
    const RelaxedCapture scope(cuda_);
  }
  EXPECT_EQ(cuda_.exchange_capture_mode(CaptureMode::kGlobal).value(), CaptureMode::kGlobal);
}

TEST_F(FakeCudaTest, CountsWhatIsAlive) {
  int host = 0;
  const DevicePtr memory = cuda_.alloc(100).value();
  const DevicePtr opened = cuda_.open_ipc(cuda_.export_ipc(memory + 50).value()).value();
  const Stream stream = cuda_.create_stream(StreamPriority::kNormal).value();
  const Event event = cuda_.create_event(EventTiming::kOff).value();
  const Module module = cuda_.load_module({}).value();
  ASSERT_TRUE(cuda_.register_host(&host, sizeof host).ok());
  EXPECT_EQ(opened, memory);
  EXPECT_EQ(
      cuda_.alive(),
      (FakeCudaCounts{.memory = 1, .ipc = 1, .hosts = 1, .streams = 1, .events = 1, .modules = 1}));
  EXPECT_TRUE(cuda_.close_ipc(opened).ok());
  EXPECT_TRUE(cuda_.free(memory).ok());
  EXPECT_TRUE(cuda_.destroy_stream(stream).ok());
  EXPECT_TRUE(cuda_.destroy_event(event).ok());
  EXPECT_TRUE(cuda_.unload_module(module).ok());
  EXPECT_TRUE(cuda_.unregister_host(&host).ok());
}

TEST_F(FakeCudaTest, RefusesToGiveBackTwice) {
  const DevicePtr memory = cuda_.alloc(100).value();
  const IpcHandle handle = cuda_.export_ipc(memory).value();
  EXPECT_TRUE(cuda_.free(memory).ok());
  EXPECT_FALSE(cuda_.free(memory).ok());
  EXPECT_FALSE(cuda_.open_ipc(handle).ok());
  EXPECT_FALSE(cuda_.close_ipc(memory).ok());
  EXPECT_FALSE(cuda_.destroy_stream(Stream{}).ok());
  EXPECT_FALSE(cuda_.synchronize(Stream{&cuda_}).ok());
  EXPECT_FALSE(cuda_.release_primary_context(0).ok());
}

TEST_F(FakeCudaTest, CopiesStayInsideTheirAllocation) {
  const auto a = own<DeviceMemory>(cuda_, cuda_.alloc(100));
  const auto b = own<DeviceMemory>(cuda_, cuda_.alloc(200));
  EXPECT_TRUE(cuda_.copy(b->get(), a->get(), 100, {}).ok());
  EXPECT_FALSE(cuda_.copy(b->get(), a->get(), 101, {}).ok());
  EXPECT_FALSE(cuda_.copy(b->get() + 101, a->get(), 100, {}).ok());
  EXPECT_FALSE(cuda_.fill(b->get() + 200 - 8, 0, 9, {}).ok());
}

// Whatever step fails, nothing stays behind.
TEST_F(FakeCudaTest, MappedMemoryCleansUpAfterAFailure) {
  const uint64_t bytes = cuda_.allocation_granularity(0).value();
  const auto allocation = own<OwnedAllocation>(cuda_, cuda_.create_allocation({0, bytes, false}));
  const int devices[] = {0, 1};
  const FakeCudaCounts before = cuda_.alive();
  for (const char* call : {"reserve_addresses", "map", "allow_access"}) {
    cuda_.fail(call, 0, driver_error("fake cuda: {}: told to", call));
    const auto memory = MappedMemory::map(cuda_, allocation->get(), bytes, devices);
    EXPECT_FALSE(memory.ok()) << call;
    EXPECT_EQ(cuda_.alive(), before) << call;
  }
  EXPECT_TRUE(MappedMemory::map(cuda_, allocation->get(), bytes, devices).ok());
  EXPECT_EQ(cuda_.alive(), before);
}

TEST_F(FakeCudaTest, MappedBytesWaitForAccess) {
  const uint64_t bytes = cuda_.allocation_granularity(0).value();
  const auto allocation = own<OwnedAllocation>(cuda_, cuda_.create_allocation({1, bytes, false}));
  const DevicePtr at = cuda_.reserve_addresses(bytes, 0).value();
  ASSERT_TRUE(cuda_.map(at, bytes, allocation->get()).ok());
  EXPECT_FALSE(cuda_.fill(at, 1, bytes, {}).ok());
  ASSERT_TRUE(cuda_.allow_access(at, bytes, 0).ok());
  EXPECT_TRUE(cuda_.fill(at, 1, bytes, {}).ok());
  EXPECT_FALSE(cuda_.free_addresses(at, bytes).ok()) << "still mapped";
  EXPECT_FALSE(cuda_.export_ipc(at).ok()) << "not from alloc()";
  EXPECT_TRUE(cuda_.unmap(at, bytes).ok());
  EXPECT_TRUE(cuda_.free_addresses(at, bytes).ok());
}

TEST_F(FakeCudaTest, KernelsAreTheTestsOwn) {
  uint32_t seen_blocks = 0;
  uint64_t seen_sum = 0;
  cuda_.define_kernel("add", [&](const LaunchShape& shape, std::span<void*> arguments) {
    seen_blocks = shape.num_blocks;
    seen_sum = *static_cast<uint64_t*>(arguments[0]) + *static_cast<uint32_t*>(arguments[1]);
    return Status();
  });
  const auto module = own<OwnedModule>(cuda_, cuda_.load_module({}));
  EXPECT_FALSE(cuda_.kernel(module->get(), "subtract").ok());
  const Kernel kernel = cuda_.kernel(module->get(), "add").value();
  ASSERT_TRUE(launch(cuda_, kernel, {.num_blocks = 7}, Stream{}, uint64_t{1} << 40, 2u).ok());
  EXPECT_EQ(seen_blocks, 7u);
  EXPECT_EQ(seen_sum, (uint64_t{1} << 40) + 2);
}

TEST_F(FakeCudaTest, ForbidsPeersOneWay) {
  cuda_.forbid_peer(1, 0);
  EXPECT_FALSE(cuda_.has_native_atomics(1, 0).value());
  EXPECT_TRUE(cuda_.has_native_atomics(0, 1).value());
  EXPECT_FALSE(cuda_.enable_peer_access(0).ok());
}

}  // namespace
}  // namespace braid::sys
