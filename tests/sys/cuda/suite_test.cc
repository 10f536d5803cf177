// What every Cuda must do: run on the fake, and on the driver where there is a GPU.
#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "sys/cuda/fake.h"
#include "sys/cuda/owned.h"

namespace braid::sys {
namespace {

using Bytes = std::vector<uint8_t>;

DevicePtr address_of(const void* memory) { return reinterpret_cast<DevicePtr>(memory); }

class CudaSuite : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    is_real_ = std::string(GetParam()) == "real";
    if (is_real_ && !real_cuda().ready().ok())
      GTEST_SKIP() << "skipped: no GPU: " << real_cuda().ready().message();
    ASSERT_TRUE(cuda().use_device(0).ok());
    stream_ = own<OwnedStream>(cuda(), cuda().create_stream(StreamPriority::kHigh)).value();
  }

  Cuda& cuda() { return is_real_ ? real_cuda() : fake_; }
  Stream stream() const { return stream_.get(); }

  DeviceMemory memory_of(uint64_t bytes) {
    return own<DeviceMemory>(cuda(), cuda().alloc(bytes)).value();
  }
  void put(DevicePtr to, const Bytes& bytes) {
    ASSERT_TRUE(cuda().copy(to, address_of(bytes.data()), bytes.size(), stream()).ok());
    ASSERT_TRUE(cuda().synchronize(stream()).ok());
  }
  Bytes get(DevicePtr from, size_t num_bytes) {
    Bytes bytes(num_bytes);
    EXPECT_TRUE(cuda().copy(address_of(bytes.data()), from, num_bytes, stream()).ok());
    EXPECT_TRUE(cuda().synchronize(stream()).ok());
    return bytes;
  }
  static Bytes counted(size_t num_bytes) {
    Bytes bytes(num_bytes);
    std::iota(bytes.begin(), bytes.end(), uint8_t{1});
    return bytes;
  }
  template <typename Object>
  bool is_done_soon(Object object) {
    const Deadline deadline = Deadline::after_ns(5'000'000'000);
    while (!deadline.passed())
      if (cuda().is_done(object).value()) return true;
    return false;
  }

  FakeCuda fake_{2};
  bool is_real_ = false;
  OwnedStream stream_;
};

TEST_P(CudaSuite, TellsOfItsDevices) {
  EXPECT_TRUE(cuda().ready().ok());
  EXPECT_GE(cuda().driver_version().value(), 12000);
  const int num_devices = cuda().num_devices().value();
  ASSERT_GE(num_devices, 1);
  for (int i = 0; i < num_devices; ++i) {
    const DeviceFacts facts = cuda().device(i).value();
    EXPECT_FALSE(facts.name.empty());
    EXPECT_EQ(facts.pci_address.size(), 12u) << facts.pci_address;
    EXPECT_GT(facts.memory_bytes, uint64_t{1} << 28);
    EXPECT_GT(facts.num_sms, 0);
    EXPECT_GE(facts.compute_major, 5);
  }
  EXPECT_FALSE(cuda().device(num_devices).ok());
  EXPECT_FALSE(cuda().use_device(-1).ok());
}

TEST_P(CudaSuite, EachThreadNeedsAContext) {
  EXPECT_EQ(cuda().current_device().value(), 0);
  std::thread([&] {
    EXPECT_EQ(cuda().current_context().value(), Context{});
    EXPECT_EQ(cuda().current_device().status().code(), Code::kUnavailable);
    EXPECT_EQ(cuda().alloc(256).status().code(), Code::kDriver);
    {
      auto scope = CurrentDevice::use(cuda(), 0);
      ASSERT_TRUE(scope.ok());
      EXPECT_EQ(cuda().current_device().value(), 0);
    }
    EXPECT_EQ(cuda().current_context().value(), Context{});
  }).join();
}

TEST_P(CudaSuite, PrimaryContextIsShared) {
  const Context context = cuda().retain_primary_context(0).value();
  EXPECT_EQ(cuda().current_context().value(), context);
  EXPECT_TRUE(cuda().release_primary_context(0).ok());
}

TEST_P(CudaSuite, CopiesAndFills) {
  const DeviceMemory a = memory_of(4096), b = memory_of(4096);
  put(a.get(), counted(4096));
  ASSERT_TRUE(cuda().fill(b.get(), 0xee, 4096, stream()).ok());
  ASSERT_TRUE(cuda().copy_on_device(b.get() + 3, a.get() + 100, 77, stream()).ok());
  const Bytes in = counted(4096), out = get(b.get(), 4096);
  Bytes expected(4096, 0xee);
  std::copy_n(in.begin() + 100, 77, expected.begin() + 3);
  EXPECT_EQ(out, expected);
}

// On a stream of our own and on the legacy one, which takes no batches.
TEST_P(CudaSuite, CopiesSeveralAtOnce) {
  const DeviceMemory a = memory_of(4096), b = memory_of(4096);
  put(a.get(), counted(4096));
  for (const Stream where : {stream(), Stream{}}) {
    ASSERT_TRUE(cuda().fill(b.get(), 0xee, 4096, where).ok());
    const std::vector<DeviceCopy> copies = {
        {b.get(), a.get() + 1000, 500}, {b.get() + 600, a.get(), 1}, {b.get() + 700, a.get(), 33}};
    ASSERT_TRUE(cuda().copy_batch(copies, where).ok());
    ASSERT_TRUE(cuda().synchronize(where).ok());
    const Bytes in = counted(4096), out = get(b.get(), 4096);
    Bytes expected(4096, 0xee);
    std::copy_n(in.begin() + 1000, 500, expected.begin());
    expected[600] = in[0];
    std::copy_n(in.begin(), 33, expected.begin() + 700);
    EXPECT_EQ(out, expected);
  }
  EXPECT_TRUE(cuda().copy_batch({}, stream()).ok());
}

TEST_P(CudaSuite, KnowsWhatAnAddressIs) {
  const DeviceMemory a = memory_of(1000), b = memory_of(1000);
  const PointerFacts facts = cuda().pointer_facts(a.get() + 999).value();
  EXPECT_EQ(facts.kind, MemoryKind::kDevice);
  EXPECT_EQ(facts.device, 0);
  EXPECT_TRUE(facts.is_legacy_ipc_capable);
  EXPECT_EQ(facts.buffer_id, cuda().pointer_facts(a.get()).value().buffer_id);
  EXPECT_NE(facts.buffer_id, cuda().pointer_facts(b.get()).value().buffer_id);
  EXPECT_EQ(cuda().address_range(a.get() + 500).value().base, a.get());
  EXPECT_GE(cuda().address_range(a.get() + 500).value().bytes, 1000u);
  const int on_stack = 0;
  EXPECT_EQ(cuda().pointer_facts(address_of(&on_stack)).value().kind, MemoryKind::kForeign);
}

TEST_P(CudaSuite, RegistersHostMemoryOnce) {
  alignas(4096) static uint8_t host[8192];
  const DevicePtr mapped = cuda().register_host(host, sizeof host).value();
  const RegisteredHost owner(cuda(), host);
  EXPECT_EQ(cuda().pointer_facts(address_of(host)).value().kind, MemoryKind::kHost);
  EXPECT_FALSE(cuda().register_host(host, sizeof host).ok());
  const DeviceMemory device = memory_of(64);
  put(device.get(), counted(64));
  ASSERT_TRUE(cuda().copy(mapped + 10, device.get(), 64, stream()).ok());
  ASSERT_TRUE(cuda().synchronize(stream()).ok());
  EXPECT_EQ(Bytes(host + 10, host + 74), counted(64));
}

TEST_P(CudaSuite, MapsAnotherProcesssBytes) {
  if (!cuda().device(0).value().can_export_fd) GTEST_SKIP() << "skipped: no exportable memory";
  const uint64_t bytes = cuda().allocation_granularity(0).value();
  const int devices[] = {0};
  MappedMemory first, second;
  {
    const auto made = own<OwnedAllocation>(cuda(), cuda().create_allocation({0, bytes, false}));
    first = MappedMemory::map(cuda(), made->get(), bytes, devices).value();
    const Fd fd = cuda().export_allocation(made->get()).value();
    const auto imported = own<OwnedAllocation>(cuda(), cuda().import_allocation(fd.get()));
    second = MappedMemory::map(cuda(), imported->get(), bytes, devices).value();
  }  // the mappings hold the bytes
  ASSERT_NE(first.get(), second.get());
  put(first.get() + 12345, counted(100));
  EXPECT_EQ(get(second.get() + 12345, 100), counted(100));
  const PointerFacts facts = cuda().pointer_facts(first.get()).value();
  EXPECT_TRUE(facts.can_export_fd);
  EXPECT_FALSE(facts.is_legacy_ipc_capable);
  const Allocation kept = cuda().retain_allocation(first.get()).value();
  EXPECT_TRUE(cuda().release_allocation(kept).ok());
  EXPECT_EQ(cuda().address_range(first.get() + 12345).value(), (AddressRange{first.get(), bytes}));
}

// Registered memory is known again by this: an address leads to the handle that was mapped there,
// as long as somebody holds it no other allocation has that handle, and a range is one
// allocation's.
TEST_P(CudaSuite, TellsWhichAllocationIsMapped) {
  if (!cuda().device(0).value().can_export_fd) GTEST_SKIP() << "skipped: no exportable memory";
  const uint64_t bytes = cuda().allocation_granularity(0).value();
  const DevicePtr base = cuda().reserve_addresses(2 * bytes, 0).value();
  const auto mapped_at = [&](DevicePtr at) {
    const Allocation made = cuda().create_allocation({0, bytes, false}).value();
    EXPECT_TRUE(cuda().map(at, bytes, made).ok());
    EXPECT_TRUE(cuda().allow_access(at, bytes, 0).ok());
    EXPECT_TRUE(cuda().release_allocation(made).ok());
    return made;
  };
  const Allocation first = mapped_at(base), second = mapped_at(base + bytes);
  EXPECT_NE(first, second);
  EXPECT_EQ(cuda().address_range(base + bytes - 1).value(), (AddressRange{base, bytes}));
  EXPECT_EQ(cuda().address_range(base + bytes).value(), (AddressRange{base + bytes, bytes}));
  const auto held = own<OwnedAllocation>(cuda(), cuda().retain_allocation(base + 100)).value();
  EXPECT_EQ(held.get(), first);
  put(base + bytes - 50, counted(100));  // over both
  EXPECT_EQ(get(base + bytes - 50, 100), counted(100));
  EXPECT_TRUE(cuda().unmap(base, bytes).ok());
  EXPECT_FALSE(cuda().retain_allocation(base).ok());
  for (int again = 0; again < 3; ++again) {
    mapped_at(base);
    const auto now = own<OwnedAllocation>(cuda(), cuda().retain_allocation(base)).value();
    EXPECT_NE(now.get(), held.get());
    EXPECT_TRUE(cuda().unmap(base, bytes).ok());
  }
  EXPECT_TRUE(cuda().unmap(base + bytes, bytes).ok());
  EXPECT_TRUE(cuda().free_addresses(base, 2 * bytes).ok());
}

TEST_P(CudaSuite, EventsFollowTheirStream) {
  const auto begin = own<OwnedEvent>(cuda(), cuda().create_event(EventTiming::kOn));
  const auto end = own<OwnedEvent>(cuda(), cuda().create_event(EventTiming::kOn));
  const auto other = own<OwnedStream>(cuda(), cuda().create_stream(StreamPriority::kNormal));
  const DeviceMemory memory = memory_of(1 << 20);
  EXPECT_TRUE(cuda().is_done(begin->get()).value());
  ASSERT_TRUE(cuda().record(begin->get(), stream()).ok());
  ASSERT_TRUE(cuda().fill(memory.get(), 1, 1 << 20, stream()).ok());
  ASSERT_TRUE(cuda().record(end->get(), stream()).ok());
  ASSERT_TRUE(cuda().wait_event(other->get(), end->get()).ok());
  EXPECT_TRUE(is_done_soon(other->get()));
  EXPECT_TRUE(is_done_soon(end->get()));
  EXPECT_GE(cuda().elapsed_ns(begin->get(), end->get()).value(), 0);
  EXPECT_EQ(cuda().capture_state(stream()).value(), CaptureState::kNone);
  EXPECT_EQ(cuda().capture_id(stream()).value(), 0U);
}

TEST_P(CudaSuite, CaptureModesAreOfTheThread) {
  EXPECT_EQ(cuda().exchange_capture_mode(CaptureMode::kRelaxed).value(), CaptureMode::kGlobal);
  std::thread([this] {
    EXPECT_EQ(cuda().exchange_capture_mode(CaptureMode::kGlobal).value(), CaptureMode::kGlobal);
  }).join();
  {
    const RelaxedCapture scope(cuda());
    EXPECT_EQ(cuda().exchange_capture_mode(CaptureMode::kRelaxed).value(), CaptureMode::kRelaxed);
  }
  EXPECT_EQ(cuda().exchange_capture_mode(CaptureMode::kGlobal).value(), CaptureMode::kRelaxed);
}

TEST_P(CudaSuite, FailuresNameTheCall) {
  const Status status = cuda().free(0x1230);
  EXPECT_EQ(status.code(), Code::kDriver);
  EXPECT_NE(status.message().find(is_real_ ? "cuMemFree_v2" : "free"), std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("0x1230"), std::string::npos) << status.message();
}

INSTANTIATE_TEST_SUITE_P(Each, CudaSuite, testing::Values("fake", "real"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace braid::sys
