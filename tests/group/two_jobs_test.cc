// Two jobs of one user that were given one MASTER_PORT and no token. Whatever the order in which
// their processes come, none works with another job's rank, and each is told what to set.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "group/group.h"
#include "support/processes.h"
#include "support/ranks.h"

namespace braid::group {
namespace {

constexpr int kWhole = 0, kTold = 10, kLate = 11, kMixed = 12, kOther = 13;

// Joins as `rank` of job `job`, stays for a while, and says with whom it was.
int run_rank(char job, int rank, uint16_t port, const std::string& folder, bool has_name) {
  ::setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
  Identity identity;
  identity.rank = identity.local_rank = rank;
  identity.size = 2;
  identity.store_port = port;
  if (has_name) identity.job_id = std::string("job ") + job;
  auto group = Group::join(identity, Config(), Deadline::after_ns(3_s));
  Status end = group.status();
  if (end.ok()) {
    auto names = (*group)->exchange("name", std::string(1, job), Deadline::after_ns(3_s));
    end = names.status();
    if (end.ok() && names.value() != std::vector<std::string>(2, std::string(1, job))) {
      // The other job may be about to show itself: only who goes on with it has mixed.
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
      end = (*group)->barrier("a step later", Deadline::after_ns(3_s));
      if (end.ok()) return kMixed;
    }
  }
  if (end.ok()) return kWhole;
  if (end.message().find("set BRAID_JOB_TOKEN") != std::string::npos) return kTold;
  return end.code() == Code::kUnavailable || end.code() == Code::kTimeout ||
                 end.code() == Code::kPeerLost
             ? kLate
             : kOther;
}

// Starts "B0", "A1"... one after the other, and answers what each came to.
std::vector<int> run_in_order(const std::vector<std::string>& order, bool has_name = false) {
  const test::ScratchDirectory folder;
  const uint16_t port = test::draw_port();
  std::vector<pid_t> pids;
  for (const std::string& who : order) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(run_rank(who[0], who[1] - '0', port, folder.path(), has_name));
    pids.push_back(pid);
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
  }
  std::vector<int> ends;
  for (const pid_t pid : pids) ends.push_back(test::join_rank(pid, test::soon()));
  return ends;
}

void expect_no_mixture(const std::vector<std::string>& order) {
  const std::vector<int> ends = run_in_order(order);
  int num_told = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    EXPECT_TRUE(ends[i] == kTold || ends[i] == kLate) << order[i] << " came to " << ends[i];
    num_told += ends[i] == kTold ? 1 : 0;
  }
  EXPECT_GE(num_told, 2);
}

TEST(TwoJobs, RankZerosBesideEachOther) { expect_no_mixture({"B0", "A0", "A1", "B1"}); }

TEST(TwoJobs, ARankOfTheOtherJobComesFirst) { expect_no_mixture({"B0", "A1", "B1", "A0"}); }

TEST(TwoJobs, ARankOfTheOtherJobAndItsRankZero) { expect_no_mixture({"B0", "A1", "A0", "B1"}); }

TEST(TwoJobs, WithNamesEachFindsItsOwn) {
  EXPECT_EQ(run_in_order({"B0", "A0", "A1", "B1"}, true), std::vector<int>(4, kWhole));
}

}  // namespace
}  // namespace braid::group
