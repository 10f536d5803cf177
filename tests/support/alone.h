// A test in a process of its own, in which nothing has begun a thread yet: for what can be tried
// only where others would mind, as a process that gets no thread more.
//
//   TEST(X, DISABLED_WithoutThreads) {
//     test::forbid_threads();
//     EXPECT_EQ(begin_something().code(), Code::kExhausted);
//     test::end_alone();
//   }
//   TEST(X, SaysThatThereIsNoThread) { test::run_alone("X.DISABLED_WithoutThreads"); }
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

#include "support/processes.h"
#include "sys/host/thread.h"

namespace braid::test {

/// From here on, until allow_threads(), as where the limit of processes is reached. Ends a process
/// that gets them all the same.
inline void forbid_threads() {
  constexpr uid_t kNobody = 65'534;  // root's are not counted
  if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) _exit(kSkipExit);
  rlimit limit{};
  ::getrlimit(RLIMIT_NPROC, &limit);
  limit.rlim_cur = 0;
  ::setrlimit(RLIMIT_NPROC, &limit);
  auto one = sys::start_thread("one too many", [] {});
  if (!one.ok()) return;
  one->join();
  _exit(kSkipExit);
}

inline void allow_threads() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NPROC, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NPROC, &limit);
}

/// The end of a test of run_alone(): a sanitizer's look at what is left would need a thread.
[[noreturn]] inline void end_alone() {
  const bool has_failed = testing::Test::HasFailure();
  std::fflush(nullptr);
  _exit(has_failed ? 1 : 0);
}

/// Runs one test of this program, which may end with kSkipExit.
inline void run_alone(const std::string& test) {
  const int exit = join_rank(spawn_rank(test, "", "", 0), Deadline::after_ns(60'000'000'000));
  if (exit == kSkipExit) GTEST_SKIP() << "cannot be arranged here: " << test;
  EXPECT_EQ(exit, 0);
}

}  // namespace braid::test
