#include "comm/device/links/nvlinks.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "support/thread_group.h"
#include "sys/cuda/fake.h"

namespace braid::comm {
namespace {

/// What every rank finds; rank r uses GPU r of the machine `cuda_of(r)`.
std::vector<Result<Nvlinks>> find_all(int size, const std::function<sys::Cuda&(int)>& cuda_of) {
  auto hub = std::make_shared<test::ThreadHub>(size);
  std::vector<Result<Nvlinks>> found(static_cast<size_t>(size), Result<Nvlinks>(Nvlinks{}));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      test::ThreadGroup group(hub, rank);
      found[static_cast<size_t>(rank)] =
          find_nvlinks(group, cuda_of(rank), rank, Deadline::after_ns(10'000'000'000));
    });
  for (std::thread& thread : threads) thread.join();
  return found;
}

TEST(Nvlinks, AllPairsOfAnHgxBoardHaveThem) {
  sys::FakeCuda cuda(4);
  const int num_sms = cuda.device(0).value().num_sms;
  for (const auto& found : find_all(4, [&](int) -> sys::Cuda& { return cuda; })) {
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    EXPECT_EQ(found.value().why_not, "");
    EXPECT_EQ(found.value().least_sms, num_sms);
  }
}

TEST(Nvlinks, OnePairWithoutDecidesForAllRanks) {
  sys::FakeCuda cuda(4);
  cuda.forbid_peer(2, 3);
  for (const auto& found : find_all(4, [&](int) -> sys::Cuda& { return cuda; })) {
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    EXPECT_EQ(found.value().why_not,
              "rank 2: no NVLink to the gpu at " + cuda.device(3).value().pci_address);
    // It was the largest of numbers, and what ranks that share a GPU may launch had no bound.
    EXPECT_EQ(found.value().least_sms, cuda.device(0).value().num_sms);
  }
}

TEST(Nvlinks, RanksThatShareAGpuAreFound) {
  sys::FakeCuda cuda(2);
  const auto find = [&](std::vector<int> ordinals) {
    auto hub = std::make_shared<test::ThreadHub>(2);
    Result<Nvlinks> found = Nvlinks{};
    std::thread other([&] {
      test::ThreadGroup group(hub, 1);
      EXPECT_TRUE(find_nvlinks(group, cuda, ordinals[1], Deadline::after_ns(10'000'000'000)).ok());
    });
    test::ThreadGroup group(hub, 0);
    found = find_nvlinks(group, cuda, ordinals[0], Deadline::after_ns(10'000'000'000));
    other.join();
    return found.value();
  };
  EXPECT_TRUE(find({1, 1}).are_shared);
  EXPECT_EQ(find({1, 1}).why_not, "");
  EXPECT_FALSE(find({0, 1}).are_shared);
}

TEST(Nvlinks, HiddenGpusCannotBeAskedAbout) {
  sys::FakeCuda all(2), first(1);
  for (const auto& found :
       find_all(2, [&](int rank) -> sys::Cuda& { return rank == 0 ? first : all; })) {
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    EXPECT_EQ(found.value().why_not, "rank 0: the gpu at " + all.device(1).value().pci_address +
                                         " is not among this process's 1");
  }
}

TEST(Nvlinks, AFailingDriverIsToldToAllRanks) {
  sys::FakeCuda cuda(2);
  cuda.fail("has_native_atomics", 0, driver_error("out of order"));
  for (const auto& found : find_all(2, [&](int) -> sys::Cuda& { return cuda; })) {
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    EXPECT_NE(found.value().why_not.find("out of order"), std::string::npos);
  }
}

}  // namespace
}  // namespace braid::comm
