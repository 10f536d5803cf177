// Ranks as processes that die or stop. The children talk by exit codes only; 0 is what the test
// wants.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "group/group.h"
#include "support/ranks.h"

namespace braid::group {
namespace {

using test::as_rank;
using test::draw_job;
using test::soon;

constexpr int kOk = 0, kNoGroup = 10, kNoNews = 11, kWrongCode = 12, kWrongText = 13, kTooSlow = 14;

// What a surviving rank must see: fate peer_lost that starts with `text`, soon.
int expect_fate(Group& group, const std::string& text) {
  const Deadline deadline = soon();
  while (!group.broken() && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!group.broken()) return kNoNews;
  if (group.fate().code() != Code::kPeerLost) return kWrongCode;
  return group.fate().message().starts_with(text) ? kOk : kWrongText;
}

std::atomic<int>* arrivals = nullptr;  // in memory that a test's processes share

// Comes back when `target` processes in all have called it: a meeting that does not go through the
// group.
void meet_at(int target) {
  const Deadline deadline = soon();
  for (++*arrivals; *arrivals < target && !deadline.passed();) ::usleep(500);
}

class Processes {
 public:
  // Each child joins as a rank of one job, or gives up after `join_ns`, and ends with what `body`
  // returns.
  Processes(int size, const std::function<int(Group&)>& body, int64_t join_ns = 20_s) {
    const Identity job = draw_job(size);
    void* shared = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    arrivals = new (shared) std::atomic<int>(0);
    for (int rank = 0; rank < size; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) ::_exit(child(as_rank(job, rank), body, join_ns));
      pids_.push_back(pid);
    }
  }
  ~Processes() {
    for (const pid_t pid : pids_) {
      if (pid == 0) continue;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    ::munmap(arrivals, 4096);
  }
  // Until every child is in the group.
  void await_all() const {
    const Deadline deadline = soon();
    while (*arrivals < static_cast<int>(pids_.size()) && !deadline.passed()) ::usleep(500);
    EXPECT_GE(*arrivals, static_cast<int>(pids_.size()));
  }
  void kill(int rank, int signal) const { ::kill(pids_[static_cast<size_t>(rank)], signal); }
  // The exit code, or -signal.
  int wait(int rank) {
    int status = 0;
    EXPECT_EQ(::waitpid(pids_[static_cast<size_t>(rank)], &status, 0),
              pids_[static_cast<size_t>(rank)]);
    pids_[static_cast<size_t>(rank)] = 0;
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  // Nobody starts to die before all are in the group, which a barrier of the group itself cannot
  // promise: rank 0 may be through it while the store in rank 0 still has to tell the others.
  static int child(const Identity& identity, const std::function<int(Group&)>& body,
                   int64_t join_ns) {
    auto group = Group::join(identity, Config(), Deadline::after_ns(join_ns));
    if (!group.ok()) return kNoGroup;
    if (!(*group)->barrier("all here", Deadline::after_ns(join_ns)).ok()) return kNoGroup;
    meet_at(identity.size);
    return body(**group);
  }
  std::vector<pid_t> pids_;
};

class Victim : public ::testing::TestWithParam<int> {};

TEST_P(Victim, KilledWhileIdleIsKnownToAll) {
  const int victim = GetParam();
  Processes ranks(4, [&](Group& group) {
    if (group.rank() == victim) ::raise(SIGKILL);
    return expect_fate(group, fmt::format("rank {} died", victim));
  });
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(ranks.wait(rank), rank == victim ? -SIGKILL : kOk) << "rank " << rank;
}

TEST_P(Victim, KilledDuringAnExchangeEndsItForAll) {
  const int victim = GetParam();
  Processes ranks(4, [&](Group& group) {
    if (group.rank() == victim) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the others wait by now
      ::raise(SIGKILL);
    }
    const int64_t start_ns = now_ns();
    const Status status = group.barrier("never", soon());
    if (status.code() != Code::kPeerLost) return kWrongCode;
    return now_ns() - start_ns < 10_s ? expect_fate(group, fmt::format("rank {} died", victim))
                                      : kTooSlow;
  });
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(ranks.wait(rank), rank == victim ? -SIGKILL : kOk) << "rank " << rank;
}

TEST_P(Victim, StoppedIsFoundByTheDeadlineAndNamed) {
  const int victim = GetParam();
  Processes ranks(3, [&](Group& group) {
    if (group.rank() == victim) ::raise(SIGSTOP);
    const Status status = group.barrier("never", Deadline::after_ns(500_ms));
    meet_at(3 + 2);  // the first to give up does not leave before the other has
    if (status.code() != Code::kTimeout) return kWrongCode;
    return status.message().find(std::to_string(victim)) != std::string::npos ? kOk : kWrongText;
  });
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == victim) continue;
    EXPECT_EQ(ranks.wait(rank), kOk) << "rank " << rank;
  }
  ranks.kill(victim, SIGKILL);
  EXPECT_EQ(ranks.wait(victim), -SIGKILL);
}

// A data loader's worker: forked from a rank, it inherits every descriptor and outlives it. The
// rank's death must show all the same.
TEST_P(Victim, AForkedWorkerDoesNotHideADeath) {
  const int victim = GetParam();
  int alive[2];
  ASSERT_EQ(::pipe(alive), 0);  // its end of stream tells the workers that the test is over
  {
    Processes ranks(3, [&](Group& group) {
      ::close(alive[1]);
      if (group.rank() == victim) {
        if (::fork() == 0) {
          char c = 0;
          (void)!::read(alive[0], &c, 1);
          ::_exit(0);
        }
        ::raise(SIGKILL);
      }
      return expect_fate(group, fmt::format("rank {} died", victim));
    });
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(ranks.wait(rank), rank == victim ? -SIGKILL : kOk) << "rank " << rank;
  }
  ::close(alive[0]);
  ::close(alive[1]);
}

INSTANTIATE_TEST_SUITE_P(StoreAndOther, Victim, ::testing::Values(0, 2));

TEST(Death, ExitWithoutGoodbyeIsADeath) {
  Processes ranks(2, [](Group& group) {
    if (group.rank() == 1) ::_exit(kOk);
    return expect_fate(group, "rank 1 died");
  });
  EXPECT_EQ(ranks.wait(0), kOk);
  EXPECT_EQ(ranks.wait(1), kOk);
}

TEST(Death, AForkedChildMayDestroyItsCopy) {
  Processes ranks(2, [](Group& group) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      group.leave();  // neither hangs nor says goodbye in its parent's name
      ::_exit(kOk);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) && group.barrier("still whole", soon()).ok() ? kOk : kWrongCode;
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.wait(rank), kOk) << "rank " << rank;
}

int exchange_until_lost(Group& group) {
  while (true) {
    const Status status = group.exchange("busy", std::string(10'000, 'x'), soon()).status();
    if (!status.ok()) return status.code() == Code::kPeerLost ? kOk : kWrongCode;
  }
}

TEST(Death, KilledFromOutsideAtAnyMoment) {
  for (int round = 0; round < 10; ++round) {
    Processes ranks(3, exchange_until_lost);
    ranks.await_all();
    std::this_thread::sleep_for(std::chrono::milliseconds(1 + 7 * round));
    ranks.kill(1, SIGKILL);
    EXPECT_EQ(ranks.wait(1), -SIGKILL);
    for (const int rank : {0, 2}) EXPECT_EQ(ranks.wait(rank), kOk) << "rank " << rank;
  }
}

TEST(Death, KilledFromOutsideAroundTheJoin) {
  for (int round = 0; round < 5; ++round) {
    Processes ranks(3, exchange_until_lost, 2_s);
    std::this_thread::sleep_for(std::chrono::milliseconds(7 * round));
    ranks.kill(1, SIGKILL);
    EXPECT_EQ(ranks.wait(1), -SIGKILL);
    for (const int rank : {0, 2}) {
      const int end = ranks.wait(rank);
      // Killed before all had joined: then there was no group to lose anybody from.
      EXPECT_TRUE(end == kOk || end == kNoGroup) << "rank " << rank << " ended with " << end;
    }
  }
}

}  // namespace
}  // namespace braid::group
