// Ranks are processes here: killed or stopped at any point, every other one gets peer_lost or
// timeout within the deadline, and nothing stays behind.
#include <gtest/gtest.h>

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/sanitizer.h"
#include "base/units.h"
#include "coll/all_gather/all_gather.h"
#include "coll/all_reduce/all_reduce.h"
#include "coll/all_to_all/all_to_all.h"
#include "coll/broadcast/broadcast.h"
#include "coll/ranks.h"
#include "support/processes.h"
#include "support/ranks.h"

namespace braid {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kTimeoutNs = 2_s;

// Exit codes of a rank.
constexpr int kLostInTime = 42;
constexpr int kNotLost = 43;
constexpr int kTooLate = 44;
constexpr int kNoComm = 45;

// ---- the rank's side ----

/// The scenario's words: links, port and token of the job.
struct Job {
  std::string links;
  group::Identity identity;
};

Job read_job(const test::SpawnedRank& self) {
  Job job;
  std::istringstream words(self.scenario);
  words >> job.links >> job.identity.store_port >> job.identity.job_token;
  job.identity.size = kRanks;
  job.identity = test::as_rank(job.identity, self.rank);
  return job;
}

Status call_number(comm::Comm& comm, uint64_t i, std::vector<float>& a, std::vector<float>& b) {
  const uint64_t count = 1 + (i * 7919) % a.size();
  switch (i % 4) {
    case 0: return coll::all_reduce(comm, a.data(), b.data(), count, Dtype::kFloat32, RedOp::kSum);
    case 1: return coll::all_gather(comm, a.data(), b.data(), count, Dtype::kFloat32);
    case 2:
      return coll::broadcast(comm, b.data(), count, Dtype::kFloat32, static_cast<int>(i % kRanks));
    default: return coll::all_to_all(comm, a.data(), b.data(), count / kRanks, Dtype::kFloat32);
  }
}

// Calls collectives for ever, until one fails; says whether it failed as it should.
int rank_main(const test::SpawnedRank& self) {
  const Job job = read_job(self);
  const Config config = test::make_config(
      {{"BRAID_LINKS", job.links}, {"BRAID_TIMEOUT", "2s"}, {"BRAID_LOG", "error"}});
  auto comm = comm::Comm::create(job.identity, config);
  if (!comm.ok()) {
    fmt::print(stderr, "rank {}: no comm: {}\n", self.rank, comm.status().to_string());
    return kNoComm;
  }
  std::vector<float> a(300'000, 1.0F), b(4 * 300'000);
  test::write_file(self.directory + "/ready" + std::to_string(self.rank), "");
  for (uint64_t i = 0;; ++i) {
    const int64_t start_ns = now_ns();
    const Status status = call_number(*comm.value(), i, a, b);
    if (status.ok()) continue;
    if (now_ns() - start_ns > kTimeoutNs + 2_s) return kTooLate;
    if (status.code() == Code::kPeerLost || status.code() == Code::kTimeout) return kLostInTime;
    fmt::print(stderr, "rank {}: {}\n", self.rank, status.to_string());
    return kNotLost;
  }
}

TEST(ProcessFaultRank, DISABLED_Run) {
  if (std::getenv("BRAID_TEST_SCENARIO") == nullptr) GTEST_SKIP() << "started by ProcessFault";
  const int code = rank_main(test::SpawnedRank());
  std::_Exit(code);  // a lost rank's exit code, not the test program's
}

// ---- the test's side ----

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

class ProcessFault : public testing::TestWithParam<Fault> {
 protected:
  void start_ranks() {
    const group::Identity job = test::draw_job(kRanks);
    std::string token = job.job_token;
    std::replace(token.begin(), token.end(), ' ', '-');
    const std::string scenario = fmt::format("{} {} {}", GetParam().links, job.store_port, token);
    for (int rank = 0; rank < kRanks; ++rank)
      ranks_.push_back(
          test::spawn_rank("ProcessFaultRank.DISABLED_Run", scenario, scratch_.path(), rank));
    for (int rank = 0; rank < kRanks; ++rank)
      ASSERT_TRUE(test::wait_for_file(scratch_.path() + "/ready" + std::to_string(rank),
                                      Deadline::after_ns(60_s)))
          << "rank " << rank << " made no comm";
  }
  int join(size_t rank) { return test::join_rank(ranks_[rank], Deadline::after_ns(30_s)); }

  // braid's own segments have no names; libfabric's provider shm names its files by the process.
  void expect_no_shm_files() {
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
      for (const pid_t pid : ranks_)
        EXPECT_EQ(entry.path().filename().string().find(std::to_string(pid) + ":"),
                  std::string::npos)
            << entry.path() << " stayed behind";
  }

  void TearDown() override {
    for (const pid_t pid : ranks_) kill(pid, SIGKILL);  // those that a failed check left running
  }

  test::ScratchDirectory scratch_;
  std::vector<pid_t> ranks_;
};

TEST_P(ProcessFault, OthersAreTold) {
  if (kIsThreadSanitized)
    GTEST_SKIP() << "skipped: the thread sanitizer ends ranks with exit codes of its own";
  ASSERT_NO_FATAL_FAILURE(start_ranks());
  usleep(static_cast<useconds_t>(GetParam().after_us));
  const auto victim = static_cast<size_t>(GetParam().victim);
  ASSERT_EQ(kill(ranks_[victim], GetParam().signal), 0);
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (rank == victim) continue;
    EXPECT_EQ(join(rank), kLostInTime) << "rank " << rank;
  }
  kill(ranks_[victim], SIGKILL);
  EXPECT_EQ(join(victim), 128 + SIGKILL);
  expect_no_shm_files();
  ranks_.clear();
}

INSTANTIATE_TEST_SUITE_P(
    Killed, ProcessFault,
    testing::Values(Fault{SIGKILL, 1, 0, "shm"}, Fault{SIGKILL, 3, 1'500, "shm,staged"},
                    Fault{SIGKILL, 0, 20'000, "shm"}, Fault{SIGKILL, 2, 70'000, "shm,staged,rdma"},
                    Fault{SIGKILL, 0, 33'000, "rdma"}, Fault{SIGKILL, 3, 5'000, "rdma"}));
INSTANTIATE_TEST_SUITE_P(Stopped, ProcessFault,
                         testing::Values(Fault{SIGSTOP, 2, 10'000, "shm,staged"},
                                         Fault{SIGSTOP, 0, 25'000, "shm"},
                                         Fault{SIGSTOP, 1, 15'000, "rdma,shm"}));

}  // namespace
}  // namespace braid
