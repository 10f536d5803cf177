// Windows on memory of cuMemCreate: several allocations under one span, mapped by the peers, known
// again or not, and what becomes of it when one of many calls fails. Windows on other memory are
// tested through their user, comm/device.
#include "transport/nvlink/window.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "support/processes.h"
#include "support/segmented_memory.h"
#include "support/thread_group.h"
#include "sys/cuda/fake.h"
#include "transport/nvlink/handover.h"

namespace braid::nvlink {
namespace {

using test::SegmentedMemory;

constexpr uint64_t kUnit = SegmentedMemory::kSegmentBytes;

/// Every rank with a GPU of its own, and a barrier of the test's.
void run_windows(int size, sys::FakeCuda& cuda,
                 const std::function<void(group::Group&, std::barrier<>&)>& body) {
  auto hub = std::make_shared<test::ThreadHub>(size);
  std::barrier<> all(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      test::ThreadGroup group(hub, rank);
      EXPECT_TRUE(cuda.use_device(rank).ok());
      body(group, all);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

Result<Window> share(group::Group& group, sys::Cuda& cuda, sys::DevicePtr memory, uint64_t bytes) {
  return share_window(group, cuda, {"memory", group.rank(), memory, bytes, {}},
                      Deadline::after_ns(10'000'000'000));
}

uint8_t byte_of(int from, int to, uint64_t i) {
  return static_cast<uint8_t>(i * 7 + i / 4096 + static_cast<uint64_t>(50 * from + 11 * to));
}

/// Everyone writes into a stripe of everyone's span through the windows; owners read it at home.
void expect_shared(group::Group& group, std::barrier<>& all, sys::Cuda& cuda, const Window& window,
                   std::byte* home) {
  const int rank = group.rank(), size = group.size();
  const uint64_t stripe = window.bytes() / static_cast<uint64_t>(size);
  std::vector<uint8_t> bytes(stripe);
  for (int to = 0; to < size; ++to) {
    for (uint64_t i = 0; i < stripe; ++i) bytes[i] = byte_of(rank, to, i);
    const Status status = cuda.copy(window.at(to) + static_cast<uint64_t>(rank) * stripe,
                                    reinterpret_cast<sys::DevicePtr>(bytes.data()), stripe, {});
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  all.arrive_and_wait();
  uint64_t wrong = 0;
  for (int from = 0; from < size; ++from)
    for (uint64_t i = 0; i < stripe; ++i)
      wrong += home[static_cast<uint64_t>(from) * stripe + i] !=
                       static_cast<std::byte>(byte_of(from, rank, i))
                   ? 1
                   : 0;
  EXPECT_EQ(wrong, 0U) << "rank " << rank;
  all.arrive_and_wait();
}

// Cut differently on every rank, and beginning and ending inside an allocation.
TEST(WindowOfSegments, IsWrittenByAllAndReadAtHome) {
  sys::FakeCuda cuda(3);
  run_windows(3, cuda, [&](group::Group& group, std::barrier<>& all) {
    const std::vector<uint64_t> lengths[] = {{4}, {1, 2, 1}, {2, 1, 1}};
    const SegmentedMemory memory(cuda, group.rank(), lengths[group.rank()]);
    const uint64_t offset = 300 + 16 * static_cast<uint64_t>(group.rank());
    auto window = share(group, cuda, memory.get() + offset, 3 * kUnit + 100);
    ASSERT_TRUE(window.ok()) << window.status().to_string();
    EXPECT_TRUE(window.value().is_mapped_memory());
    EXPECT_EQ(window.value().at(group.rank()), memory.get() + offset);
    expect_shared(group, all, cuda, window.value(), memory.data() + offset);
  });
}

TEST(WindowOfSegments, StandsBesideOneOfAnAllocation) {
  sys::FakeCuda cuda(2);
  run_windows(2, cuda, [&](group::Group& group, std::barrier<>& all) {
    std::optional<SegmentedMemory> segments;
    sys::DeviceMemory plain;
    if (group.rank() == 0)
      segments.emplace(cuda, 0, std::vector<uint64_t>{1, 1});
    else
      plain = sys::own<sys::DeviceMemory>(cuda, cuda.alloc(2 * kUnit)).value();
    const sys::DevicePtr memory = segments ? segments->get() : plain.get();
    auto window = share(group, cuda, memory, 2 * kUnit);
    ASSERT_TRUE(window.ok()) << window.status().to_string();
    EXPECT_EQ(window.value().is_mapped_memory(), group.rank() == 0);
    expect_shared(group, all, cuda, window.value(), sys::pointer_to<std::byte>(memory));
  });
}

/// One rank of the next test, in a process of its own with its own driver.
TEST(WindowOfSegments, DISABLED_Rank) {
  const test::SpawnedRank me;
  const int other = 1 - me.rank;
  const auto value = [](int rank) { return static_cast<uint8_t>(10 + rank); };
  sys::FakeCuda cuda(2);
  ASSERT_TRUE(cuda.use_device(me.rank).ok());
  test::FileGroup group(me.directory, me.rank, 2);
  const SegmentedMemory memory(cuda, me.rank, {1, 2});
  auto window = share(group, cuda, memory.get() + 64, 2 * kUnit);
  ASSERT_TRUE(window.ok()) << window.status().to_string();
  EXPECT_TRUE(cuda.fill(window.value().at(other) + kUnit - 64 - 5, value(me.rank), 10, {}).ok());
  EXPECT_TRUE(group.barrier("written", Deadline::after_ns(10'000'000'000)).ok());
  for (uint64_t i = 0; i < 12; ++i) {
    const bool is_written = i > 0 && i < 11;
    EXPECT_EQ(memory.data()[kUnit - 6 + i], std::byte{is_written ? value(other) : uint8_t{0}});
  }
  EXPECT_TRUE(group.barrier("read", Deadline::after_ns(10'000'000'000)).ok());
}

TEST(WindowOfSegments, CrossesProcesses) {
  const test::ScratchDirectory directory;
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(
        test::spawn_rank("WindowOfSegments.DISABLED_Rank", "window", directory.path(), rank));
  for (const pid_t rank : ranks)
    EXPECT_EQ(test::join_rank(rank, Deadline::after_ns(30'000'000'000)), 0);
}

// More allocations than go into one letter.
TEST(WindowOfSegments, MayHaveManySegments) {
  constexpr size_t kMany = 150;
  sys::FakeCuda cuda(2);
  run_windows(2, cuda, [&](group::Group& group, std::barrier<>& all) {
    const SegmentedMemory memory(cuda, group.rank(), std::vector<uint64_t>(kMany, 1));
    auto window = share(group, cuda, memory.get(), memory.bytes());
    ASSERT_TRUE(window.ok()) << window.status().to_string();
    const int other = 1 - group.rank();
    for (size_t i = 0; i < kMany; ++i)
      EXPECT_TRUE(cuda.fill(window.value().at(other) + (memory.begin_of(i) - memory.get()),
                            static_cast<uint8_t>(i + 1), 1, {})
                      .ok());
    all.arrive_and_wait();
    for (size_t i = 0; i < kMany; ++i)
      EXPECT_EQ(static_cast<size_t>(memory.data()[i * kUnit]), i + 1) << i;
    all.arrive_and_wait();
  });
}

// Handles' numbers are used again: an allocation that has the number and the address of the one
// before is another one.
TEST(WindowOfSegments, KnowsWhatIsMappedThere) {
  sys::FakeCuda cuda(2);
  run_windows(2, cuda, [&](group::Group& group, std::barrier<>& all) {
    SegmentedMemory memory(cuda, group.rank(), {1, 1, 1});
    const sys::DevicePtr at = memory.get() + 10;
    auto window = share(group, cuda, at, 2 * kUnit + 100);
    ASSERT_TRUE(window.ok()) << window.status().to_string();
    EXPECT_TRUE(window.value().is_current(at, 2 * kUnit + 100));
    memory.remap(1);
    EXPECT_FALSE(window.value().is_current(at, 2 * kUnit + 100));
    EXPECT_TRUE(window.value().is_current(at, 1000)) << "the first segment is as it was";
    EXPECT_TRUE(window.value().is_current(at + 2 * kUnit, 100)) << "and so is the last";
    EXPECT_FALSE(window.value().is_current(at + kUnit - 20, 11));
    memory.unmap(2);
    EXPECT_FALSE(window.value().is_current(at + 2 * kUnit, 100));
    all.arrive_and_wait();
    // What a peer still writes goes to the memory that was there, which nobody else has.
    memory.data()[kUnit] = std::byte{77};
    all.arrive_and_wait();
    EXPECT_TRUE(cuda.fill(window.value().at(1 - group.rank()) + kUnit - 10, 1, 100, {}).ok());
    all.arrive_and_wait();
    EXPECT_EQ(static_cast<int>(memory.data()[kUnit]), 77);
    all.arrive_and_wait();
  });
}

TEST(WindowOfSegments, NeedsAllOfTheSpan) {
  sys::FakeCuda cuda(2);
  run_windows(2, cuda, [&](group::Group& group, std::barrier<>&) {
    SegmentedMemory memory(cuda, group.rank(), {1, 1, 1});
    if (group.rank() == 1) memory.unmap(1);
    const auto window = share(group, cuda, memory.get(), memory.bytes());
    EXPECT_EQ(window.status().code(), Code::kInvalidArgument) << window.status().to_string();
    EXPECT_NE(window.status().message().find("rank 1"), std::string::npos)
        << window.status().to_string();
  });
}

// Whatever fails, on one rank: all ranks say so, none waits, nothing is left behind.
TEST(WindowOfSegments, FailsOnEveryRank) {
  for (const char* method : {"export_allocation", "import_allocation", "reserve_addresses", "map",
                             "allow_access", "retain_allocation"})
    for (const uint64_t nth : {0, 1}) {
      if (nth == 1 && std::string_view(method) == "reserve_addresses") continue;  // one peer
      SCOPED_TRACE(fmt::format("{} call {}", method, nth));
      sys::FakeCuda cuda(2);
      const int64_t start_ns = now_ns();
      run_windows(2, cuda, [&](group::Group& group, std::barrier<>& all) {
        const SegmentedMemory memory(cuda, group.rank(), {1, 1});
        all.arrive_and_wait();
        if (group.rank() == 1) cuda.fail(method, nth, driver_error("{} broke", method));
        all.arrive_and_wait();
        const auto window = share(group, cuda, memory.get(), memory.bytes());
        EXPECT_FALSE(window.ok());
        EXPECT_NE(window.status().message().find("broke"), std::string::npos)
            << window.status().to_string();
        all.arrive_and_wait();
      });
      EXPECT_LT(now_ns() - start_ns, 5'000'000'000);
    }
}

TEST(WindowOfSegments, WaitsNoLongerThanItsDeadline) {
  sys::FakeCuda cuda(2);
  const std::vector<std::vector<uint64_t>> parts = {{kUnit}, {kUnit}};
  run_windows(2, cuda, [&](group::Group& group, std::barrier<>& all) {
    const SegmentedMemory memory(cuda, group.rank(), {1});
    {
      const Backing backing = Backing::find(cuda, memory.get(), kUnit).value();
      const Backing none;
      // Rank 1 gives nothing, though it said that it would.
      const HandoverRequest request{"memory", group.rank(), group.rank() == 0 ? &backing : &none,
                                    parts};
      const auto mapped = hand_over(group, cuda, request, Deadline::after_ns(300'000'000));
      EXPECT_EQ(mapped.ok(), group.rank() == 1) << mapped.status().to_string();
      if (group.rank() == 0) {
        EXPECT_EQ(mapped.status().code(), Code::kTimeout) << mapped.status().to_string();
        EXPECT_NE(mapped.status().message().find("rank 1"), std::string::npos);
      }
    }
    all.arrive_and_wait();
  });
}

}  // namespace
}  // namespace braid::nvlink
