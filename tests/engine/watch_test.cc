#include "engine/watch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <thread>

#include "engines.h"

namespace braid::engine::test {
namespace {

TEST(Watch, TellsWhatWasThereAndWhatIs) {
  Watcher watcher(nullptr);
  std::atomic<uint64_t> sum = 0, last = 0;
  auto watch = watcher.watch([&](uint64_t before, uint64_t now) {
    EXPECT_EQ(before, last);
    EXPECT_GT(now, before);
    sum += now - before;
    last = now;
    return true;
  });
  ASSERT_TRUE(is_ok(watch));
  for (uint64_t i = 1; i <= 100'000; ++i) (*watch)->word().store(i, std::memory_order_release);
  const Deadline deadline = in_seconds(10);
  while (last != 100'000 && !deadline.passed()) std::this_thread::yield();
  EXPECT_EQ(sum, 100'000);
}

TEST(Watch, EndsWhenItsCallbackSaysSoOrItIsGone) {
  Watcher watcher(nullptr);
  std::atomic<int> calls = 0, others = 0;
  auto once = watcher.watch([&](uint64_t, uint64_t) {
    ++calls;
    return false;
  });
  auto other = watcher.watch([&](uint64_t, uint64_t) {
    ++others;
    return true;
  });
  (*once)->word() = 1;
  const Deadline deadline = in_seconds(10);
  while (calls == 0 && !deadline.passed()) std::this_thread::yield();
  (*once)->word() = 2;
  (*other)->word() = 1;
  while (others == 0 && !deadline.passed()) std::this_thread::yield();
  EXPECT_EQ(calls, 1);
  std::atomic<uint64_t>& word = (*other)->word();
  other.value().reset();
  word = 99;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(others, 1);
  auto again = watcher.watch([](uint64_t, uint64_t) { return true; });
  EXPECT_EQ(&(*again)->word(), &word);  // its place is used again, from 0
  EXPECT_EQ((*again)->word(), 0);
}

// Servers wait for requests for hours, and have a word for each layer.
TEST(Watch, LeavesTheProcessorToOthersWhileNothingHappens) {
  Watcher watcher(nullptr);
  auto watch = watcher.watch([](uint64_t, uint64_t) { return true; });
  (*watch)->word() = 1;
  const auto used_ns = [] {
    timespec used{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return used.tv_sec * int64_t{1'000'000'000} + used.tv_nsec;
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  const int64_t cpu = used_ns(), wall = now_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_LT(used_ns() - cpu, (now_ns() - wall) / 5);
}

TEST(Watch, MayThrowAndMayEndItself) {
  Watcher watcher(nullptr);
  std::unique_ptr<Watch> self;
  std::atomic<int> calls = 0;
  auto watch = watcher.watch([&](uint64_t, uint64_t) {
    ++calls;
    self.reset();
    return true;
  });
  self = std::move(watch).value();
  std::atomic<uint64_t>& word = self->word();
  auto thrower = watcher.watch(
      [](uint64_t, uint64_t) -> bool { throw std::runtime_error("users' callbacks may throw"); });
  (*thrower)->word() = 1;
  word = 1;
  const Deadline deadline = in_seconds(10);
  while (calls == 0 && !deadline.passed()) std::this_thread::yield();
  word = 2;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(calls, 1);
}

TEST(Watch, HasALimit) {
  Watcher watcher(nullptr);
  std::vector<std::unique_ptr<Watch>> all;
  for (size_t i = 0; i < Watcher::kMostWords; ++i)
    all.push_back(std::move(watcher.watch([](uint64_t, uint64_t) { return true; })).value());
  EXPECT_TRUE(failed(watcher.watch([](uint64_t, uint64_t) { return true; }).status(),
                     Code::kExhausted, "512 words"));
}

}  // namespace
}  // namespace braid::engine::test
