// Once between threads, and in a child that was forked off while a thread of its parent was at it.
#include "bindings/nccl/fork_safe_once.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace braid::nccl {
namespace {

TEST(ForkSafeOnce, ThreadsGetOneAndTheSame) {
  static ForkSafeOnce<int> once;
  std::atomic<int> num_made{0};
  std::vector<std::thread> threads;
  std::vector<int*> found(8);
  for (size_t i = 0; i < found.size(); ++i)
    threads.emplace_back([&, i] {
      found[i] = &once.get([&] { return new int(++num_made); }, [] { return new int(-1); });
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_made, 1);
  for (const int* each : found) EXPECT_EQ(each, found[0]);
  EXPECT_EQ(*found[0], 1);
}

TEST(ForkSafeOnce, AForkDoesNotWaitForItsParentsThread) {
  static ForkSafeOnce<int> once;
  std::atomic<bool> is_making{false}, may_end{false};
  std::thread maker([&] {
    once.get(
        [&] {
          is_making = true;
          while (!may_end) std::this_thread::yield();
          return new int(1);
        },
        [] { return new int(-1); });
  });
  while (!is_making) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    alarm(5);
    const int made = once.get([] { return new int(2); }, [] { return new int(3); });
    _exit(made);
  }
  int code = -1;
  EXPECT_EQ(waitpid(child, &code, 0), child);
  EXPECT_TRUE(WIFEXITED(code));
  EXPECT_EQ(WEXITSTATUS(code), 3) << "it must not think that nothing had begun";
  may_end = true;
  maker.join();
  EXPECT_EQ(once.get([] { return new int(4); }, [] { return new int(5); }), 1);
}

}  // namespace
}  // namespace braid::nccl
