// Ranks are processes here: killed or stopped at any point, every other one gets peer_lost or
// timeout within the deadline, and nothing stays behind.
#include <gtest/gtest.h>

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "coll/all_gather/all_gather.h"
#include "coll/all_reduce/all_reduce.h"
#include "coll/all_to_all/all_to_all.h"
#include "coll/broadcast/broadcast.h"
#include "coll/ranks.h"
#include "support/ranks.h"

namespace braid {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kTimeoutNs = 2_s;

// Exit codes of a rank.
constexpr int kLostInTime = 42;
constexpr int kNotLost = 1;
constexpr int kTooLate = 2;
constexpr int kNoComm = 3;

std::set<std::string> shared_memory_files() {
  std::set<std::string> names;
  if (DIR* folder = opendir("/dev/shm")) {
    while (const dirent* entry = readdir(folder)) names.insert(entry->d_name);
    closedir(folder);
  }
  return names;
}

// Calls collectives for ever, until one fails; says whether it failed as it should.
int rank_main(const group::Identity& identity, const char* links, int ready_fd) {
  const Config config =
      test::make_config({{"BRAID_LINKS", links}, {"BRAID_TIMEOUT", "2s"}, {"BRAID_LOG", "error"}});
  auto comm = comm::Comm::create(identity, config);
  if (!comm.ok()) return kNoComm;
  std::vector<float> a(300'000, 1.0F), b(4 * 300'000);
  if (write(ready_fd, "r", 1) != 1) return kNoComm;
  for (uint64_t i = 0;; ++i) {
    const uint64_t count = 1 + (i * 7919) % a.size();
    const int64_t start_ns = now_ns();
    Status status;
    switch (i % 4) {
      case 0:
        status = coll::all_reduce(*comm.value(), a.data(), b.data(), count, Dtype::kFloat32,
                                  RedOp::kSum);
        break;
      case 1:
        status = coll::all_gather(*comm.value(), a.data(), b.data(), count, Dtype::kFloat32);
        break;
      case 2:
        status = coll::broadcast(*comm.value(), b.data(), count, Dtype::kFloat32,
                                 static_cast<int>(i % kRanks));
        break;
      default:
        status =
            coll::all_to_all(*comm.value(), a.data(), b.data(), count / kRanks, Dtype::kFloat32);
        break;
    }
    if (status.ok()) continue;
    if (now_ns() - start_ns > kTimeoutNs + 2_s) return kTooLate;
    return status.code() == Code::kPeerLost || status.code() == Code::kTimeout ? kLostInTime
                                                                               : kNotLost;
  }
}

struct Fault {
  int signal;
  int victim;
  int after_us;
  const char* links;
};
void PrintTo(const Fault& f, std::ostream* os) {
  *os << (f.signal == SIGKILL ? "kill" : "stop") << " rank " << f.victim << " after " << f.after_us
      << " us on " << f.links;
}

class ProcessFault : public testing::TestWithParam<Fault> {};

TEST_P(ProcessFault, OthersAreTold) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "skipped: the thread sanitizer ends ranks with exit codes of its own";
#endif
  const std::set<std::string> before = shared_memory_files();
  const group::Identity job = test::draw_job(kRanks);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) _exit(rank_main(test::as_rank(job, rank), GetParam().links, ready[1]));
    ranks.push_back(pid);
  }
  char byte;
  for (int rank = 0; rank < kRanks; ++rank) ASSERT_EQ(read(ready[0], &byte, 1), 1);
  usleep(static_cast<useconds_t>(GetParam().after_us));
  const auto victim = static_cast<size_t>(GetParam().victim);
  ASSERT_EQ(kill(ranks[victim], GetParam().signal), 0);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank == victim) continue;
    int state = 0;
    ASSERT_EQ(waitpid(ranks[rank], &state, 0), ranks[rank]);
    EXPECT_TRUE(WIFEXITED(state)) << "rank " << rank << " ended by signal " << WTERMSIG(state);
    EXPECT_EQ(WEXITSTATUS(state), kLostInTime) << "rank " << rank;
  }
  kill(ranks[victim], SIGKILL);
  int state = 0;
  EXPECT_EQ(waitpid(ranks[victim], &state, 0), ranks[victim]);
  close(ready[0]);
  close(ready[1]);
  EXPECT_EQ(shared_memory_files(), before) << "something stayed behind in /dev/shm";
}

INSTANTIATE_TEST_SUITE_P(Killed, ProcessFault,
                         testing::Values(Fault{SIGKILL, 1, 0, "shm"},
                                         Fault{SIGKILL, 3, 1'500, "shm,staged"},
                                         Fault{SIGKILL, 0, 20'000, "shm"},
                                         Fault{SIGKILL, 2, 70'000, "shm,staged,rdma"},
                                         Fault{SIGKILL, 0, 33'000, "rdma"}));
INSTANTIATE_TEST_SUITE_P(Stopped, ProcessFault,
                         testing::Values(Fault{SIGSTOP, 2, 10'000, "shm,staged"},
                                         Fault{SIGSTOP, 0, 25'000, "shm"},
                                         Fault{SIGSTOP, 1, 15'000, "rdma,shm"}));

}  // namespace
}  // namespace braid
