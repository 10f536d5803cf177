// Mirrors between processes, of which one is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>

#include "base/sanitizer.h"
#include "support/processes.h"
#include "support/shm_files.h"
#include "transport/rdma/mirror_ends.h"

namespace braid::transport::rdma {
namespace {

using namespace braid::literals;

// Rank 1 is killed in the midst of a transfer. Rank 0's proxy is told or its GPU's deadline passes,
// and closing is quick.
void run_mirror_rank(const test::SpawnedRank& child) {
  test::FileGroup group(child.directory, child.rank, 2);
  MirrorOptions options = mirror_options(child.rank);
  options.provider = child.scenario;
  options.address = "127.0.0.1";
  auto made = connect_mirrors(sys::real_fabric(), group, options, Deadline::after_ns(15_s));
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  MirrorEnd end(std::move(made).value(), child.rank, 2, 1'000'000'000);
  const Deadline life = Deadline::after_ns(20_s);
  for (uint64_t call = 1; end.fault().code == 0 && !life.passed(); ++call) {
    end.begin(call, 20'000, call % 2 == 0);
    for (int steps = 0; !end.is_done() && !life.passed(); ++steps) {
      if (child.rank == 1 && call == 3 && steps == 3) raise(SIGKILL);
      end.step();
      sched_yield();
    }
    const std::string wrong = end.wrong();
    EXPECT_TRUE(wrong.empty() || end.fault().code != 0) << wrong;
  }
  EXPECT_EQ(end.fault().peer, 1);
  EXPECT_FALSE(life.passed());
  const int64_t start_ns = now_ns();
  end.close();
  EXPECT_LT(now_ns() - start_ns, 2_s) << "closing beside a dead peer";
}

TEST(MirrorChild, DISABLED_Run) {
  if (std::getenv("BRAID_TEST_SCENARIO") == nullptr) GTEST_SKIP() << "started by MirrorProcesses";
  run_mirror_rank(test::SpawnedRank());
}

TEST(MirrorProcesses, AKilledPeerEndsTheWaits) {
  if (kIsThreadSanitized)
    GTEST_SKIP() << "skipped: processes that kill each other are too slow under the thread "
                    "sanitizer";
  if (!sys::real_fabric().ok())
    GTEST_SKIP() << "skipped: " << sys::real_fabric().status().message();
  for (const char* provider : {"tcp", "shm"}) {
    const test::ScratchDirectory scratch;
    const test::ShmFiles shm_files;
    pid_t pids[2];
    for (int r = 0; r < 2; ++r)
      pids[r] = test::spawn_rank("*MirrorChild*", provider, scratch.path(), r);
    EXPECT_EQ(test::join_rank(pids[1], Deadline::after_ns(30_s)), 128 + SIGKILL) << provider;
    EXPECT_EQ(test::join_rank(pids[0], Deadline::after_ns(30_s)), 0) << provider;
    EXPECT_THAT(shm_files.left_by(pids), testing::IsEmpty()) << "stayed behind";
  }
}

}  // namespace
}  // namespace braid::transport::rdma
