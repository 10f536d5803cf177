// The kernels of copy.cu: the copy's own code on the CPU, all of them on a GPU where there is one.
#include "transport/nvlink/copy.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "sys/cuda/launch.h"
#include "sys/cuda/owned.h"
#include "transport/lane.h"
#include "transport/nvlink/words.cuh"

namespace braid::transport::nvlink {
namespace {

static_assert(kMaxFlags == kMaxRanks);

constexpr size_t kRoom = 1 << 12;
constexpr auto kUntouched = std::byte{0xee};
using Bytes = std::vector<std::byte>;

// No period of 16 or 256, so that a wrong offset shows.
Bytes patterned() {
  Bytes bytes(kRoom);
  for (size_t i = 0; i < kRoom; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

Bytes expected_of(const Bytes& from, size_t to_offset, size_t from_offset, size_t num_bytes) {
  Bytes to(kRoom, kUntouched);
  std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(from_offset), num_bytes,
              to.begin() + static_cast<std::ptrdiff_t>(to_offset));
  return to;
}

const size_t kSizes[] = {0, 1, 2, 15, 16, 17, 31, 33, 64, 100, 255, 256, 1000, 2047};

TEST(CopyWords, AnyOffsetAnySizeAnyTeam) {
  alignas(16) static std::byte from[kRoom], to[kRoom];
  const Bytes source = patterned();
  std::copy(source.begin(), source.end(), from);
  for (size_t to_offset = 16; to_offset < 32; ++to_offset)
    for (size_t from_offset = 16; from_offset < 32; ++from_offset)
      for (const size_t num_bytes : kSizes)
        for (const uint64_t num_threads : {1, 3, 32}) {
          std::fill_n(to, kRoom, kUntouched);
          for (uint64_t thread = 0; thread < num_threads; ++thread)
            copy_by_team({thread, num_threads}, to + to_offset, from + from_offset, num_bytes);
          ASSERT_EQ(Bytes(to, to + kRoom), expected_of(source, to_offset, from_offset, num_bytes))
              << num_bytes << " bytes from " << from_offset << " to " << to_offset << " by "
              << num_threads;
        }
}

class NvlinkKernels : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_.ready().ok()) GTEST_SKIP() << "skipped: no GPU: " << cuda_.ready().message();
    if (kernels::copy_fatbin().empty()) GTEST_SKIP() << "skipped: built without nvcc";
    ASSERT_TRUE(cuda_.use_device(0).ok());
    module_ = sys::own<sys::OwnedModule>(cuda_, cuda_.load_module(kernels::copy_fatbin())).value();
    stream_ =
        sys::own<sys::OwnedStream>(cuda_, cuda_.create_stream(sys::StreamPriority::kHigh)).value();
  }

  template <typename Args>
  void run(const char* name, const sys::LaunchShape& shape, const Args& args) {
    const auto kernel = cuda_.kernel(module_.get(), name);
    ASSERT_TRUE(kernel.ok()) << kernel.status().to_string();
    const Status status = sys::launch(cuda_, kernel.value(), shape, stream_.get(), args);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  void finish() {
    const Status status = cuda_.synchronize(stream_.get());
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  sys::DeviceMemory zeroed(uint64_t num_bytes) {
    auto memory = sys::own<sys::DeviceMemory>(cuda_, cuda_.alloc(num_bytes)).value();
    EXPECT_TRUE(cuda_.fill(memory.get(), 0, num_bytes, stream_.get()).ok());
    return memory;
  }
  void copy(sys::DevicePtr to, sys::DevicePtr from, uint64_t num_bytes) {
    ASSERT_TRUE(cuda_.copy(to, from, num_bytes, stream_.get()).ok());
  }
  static sys::DevicePtr address_of(const void* memory) {
    return reinterpret_cast<sys::DevicePtr>(memory);
  }
  uint64_t read(sys::DevicePtr from, uint64_t num_bytes) {
    uint64_t value = 0;
    copy(address_of(&value), from, num_bytes);
    finish();
    return value;
  }

  sys::Cuda& cuda_ = sys::real_cuda();
  sys::OwnedModule module_;
  sys::OwnedStream stream_;
};

TEST_F(NvlinkKernels, CopyAnyOffsetAnySize) {
  const Bytes source = patterned();
  const auto from = zeroed(kRoom), to = zeroed(kRoom);
  copy(from.get(), address_of(source.data()), kRoom);
  for (size_t to_offset = 0; to_offset < 16; ++to_offset)
    for (size_t from_offset = 0; from_offset < 16; ++from_offset)
      for (const size_t num_bytes : kSizes) {
        ASSERT_TRUE(cuda_.fill(to.get(), 0xee, kRoom, stream_.get()).ok());
        run("braid_copy16", {.num_blocks = 2, .num_threads = 32},
            CopyArgs{reinterpret_cast<std::byte*>(to.get() + to_offset),
                     reinterpret_cast<const std::byte*>(from.get() + from_offset), num_bytes});
        Bytes out(kRoom);
        copy(address_of(out.data()), to.get(), kRoom);
        finish();
        ASSERT_EQ(out, expected_of(source, to_offset, from_offset, num_bytes))
            << num_bytes << " bytes from " << from_offset << " to " << to_offset;
      }
}

TEST_F(NvlinkKernels, SignalWritesTheEpochAndWaitSeesIt) {
  const auto epoch = zeroed(8), flags = zeroed(64);
  alignas(4096) static Fault fault;
  fault = {};
  const sys::DevicePtr mapped = cuda_.register_host(&fault, sizeof fault).value();
  const sys::RegisteredHost owner(cuda_, &fault);
  for (const uint32_t flag_bytes : {4u, 8u}) {
    run("braid_advance", {}, EpochArgs{epoch.get()});
    SignalArgs signal{.epoch = epoch.get(), .offset = 5, .num_flags = 2, .flag_bytes = flag_bytes};
    signal.flags[0] = flags.get();
    signal.flags[1] = flags.get() + 16;
    run("braid_signal", {.num_threads = 32}, signal);
    WaitArgs wait{.epoch = epoch.get(), .offset = 5, .num_flags = 2, .flag_bytes = flag_bytes};
    wait.flags[0] = signal.flags[0];
    wait.flags[1] = signal.flags[1];
    wait.timeout_ns = 2'000'000'000;
    wait.fault = mapped;
    run("braid_wait", {.num_threads = 32}, wait);
    finish();
    const uint64_t now = read(epoch.get(), 8);
    EXPECT_EQ(now, flag_bytes == 4 ? 1u : 2u);
    EXPECT_EQ(read(flags.get(), flag_bytes), now + 5);
    EXPECT_EQ(read(flags.get() + 16, flag_bytes), now + 5);
    EXPECT_EQ(std::atomic_ref(fault.kind).load(std::memory_order_acquire), Fault::kNone);
  }
}

TEST_F(NvlinkKernels, WaitGivesUpAndSaysForWhom) {
  const auto epoch = zeroed(8), flags = zeroed(64);
  alignas(4096) static Fault fault;
  fault = {};
  const sys::DevicePtr mapped = cuda_.register_host(&fault, sizeof fault).value();
  const sys::RegisteredHost owner(cuda_, &fault);
  ASSERT_TRUE(cuda_.fill(flags.get(), 1, 1, stream_.get()).ok());  // flag 0 is there, flag 1 is not
  WaitArgs wait{.epoch = epoch.get(), .offset = 1, .num_flags = 2, .rank = 3};
  wait.flags[0] = flags.get();
  wait.flags[1] = flags.get() + 16;
  wait.peers[0] = 4;
  wait.peers[1] = 6;
  wait.timeout_ns = 10'000'000;
  wait.fault = mapped;
  run("braid_wait", {.num_threads = 32}, wait);
  finish();
  ASSERT_EQ(std::atomic_ref(fault.kind).load(std::memory_order_acquire), Fault::kTimeout);
  EXPECT_EQ(fault.rank, 3);
  EXPECT_EQ(fault.peer, 6);
  EXPECT_EQ(fault.expected, 1u);
  EXPECT_EQ(fault.seen, 0u);
}

}  // namespace
}  // namespace braid::transport::nvlink
