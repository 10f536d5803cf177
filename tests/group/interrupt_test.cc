// Ctrl-C while a rank waits for others: the interrupt is asked, and its answer ends the wait.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "group/group.h"
#include "support/ranks.h"
#include "sys/net/api.h"

namespace braid::group {
namespace {

using test::as_rank;
using test::draw_job;
using test::soon;
using ::testing::HasSubstr;

// Says no `after_ns` from now on.
Interrupt pressed_after(int64_t after_ns) {
  return
      [at_ns = now_ns() + after_ns] { return now_ns() < at_ns ? Status() : unavailable("Ctrl-C"); };
}

constexpr int64_t kPressed = 100_ms;
// Asked every 50 ms; the rest is for a machine that does other things.
constexpr int64_t kAnswered = kPressed + 1_s;

void expect_answered(const Identity& identity) {
  const int64_t begin_ns = now_ns();
  const Status end = Group::join(identity, Config(), soon(), pressed_after(kPressed)).status();
  EXPECT_EQ(end.message(), "Ctrl-C");
  EXPECT_LT(now_ns() - begin_ns, kAnswered);
}

TEST(Interrupted, WhileItLooksForAStore) { expect_answered(as_rank(draw_job(2), 1)); }

TEST(Interrupted, WhileItWaitsForRanks) { expect_answered(as_rank(draw_job(2), 0)); }

TEST(Interrupted, WhileAServiceSaysNothing) {
  const Identity job = draw_job(2);
  std::vector<sys::Fd> silent;
  for (int i = 0; i < 8; ++i) {
    auto fd = sys::listen_on(
        sys::resolve("127.0.0.1", static_cast<uint16_t>(job.store_port + i))->front(), 16);
    if (fd.ok()) silent.push_back(std::move(fd).value());
  }
  expect_answered(as_rank(job, 1));
}

TEST(Interrupted, ExchangeEndsForAllRanks) {
  const Identity job = draw_job(3);
  Status ends[3];
  test::run_threads(3, [&](int rank) {
    auto group = Group::join(as_rank(job, rank), Config(), soon());
    ASSERT_TRUE(group.ok());
    if (rank == 1) (*group)->set_interrupt(pressed_after(kPressed));
    if (rank == 2) {  // never comes to it
      const Deadline deadline = soon();
      while (!(*group)->broken() && !deadline.passed()) std::this_thread::yield();
      ends[rank] = (*group)->fate();
      return;
    }
    const int64_t begin_ns = now_ns();
    ends[rank] = (*group)->barrier("nobody comes", soon());
    EXPECT_LT(now_ns() - begin_ns, kAnswered);
  });
  EXPECT_EQ(ends[1].message(), "Ctrl-C");
  for (const int rank : {0, 2})
    EXPECT_THAT(ends[rank].message(), HasSubstr("rank 1 failed: Ctrl-C"));
}

// It may run handlers that use the group.
TEST(Interrupted, MayReport) {
  const Identity job = draw_job(2);
  test::run_threads(2, [&](int rank) {
    auto group = Group::join(as_rank(job, rank), Config(), soon());
    ASSERT_TRUE(group.ok());
    Group& own = **group;
    if (rank == 0)
      own.set_interrupt([&own] {
        own.report(unavailable("from inside"));
        return Status();
      });
    if (rank == 0) {
      EXPECT_THAT(own.barrier("alone", soon()).message(), HasSubstr("from inside"));
    } else {
      const Deadline deadline = soon();
      while (!own.broken() && !deadline.passed()) std::this_thread::yield();
    }
  });
}

}  // namespace
}  // namespace braid::group
