// Seats of several processes on a machine without a GPU: they meet, join a group and make a comm,
// and then agree that it comes to nothing. What a GPU does with them is
// tests/gpu/nccl_conformance.py.
#include "bindings/nccl/core/seat.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/sanitizer.h"
#include "base/units.h"

namespace braid::nccl {
namespace {

using namespace std::chrono_literals;

std::string fresh_seat_key() {
  static int number = 0;
  return "seat test " + std::to_string(getpid()) + " " + std::to_string(number++);
}

/// Well below the 15 s that a group waits for a rank to join.
constexpr int64_t kSoon = kIsSanitized ? 12_s : 5_s;

/// What processes of one test share: how often one of them came to all_are_here().
struct Here {
  std::atomic<int> num_times{0};
  int num_ranks = 0;
};
Here* here = nullptr;

/// Waits until every process has called it as often as this one: in place of naps, in which a loaded
/// machine starts no process. The others' alarms end it where one has failed.
void all_are_here() {
  static int round = 0;  // each process begins with its parent's, which never calls this
  here->num_times.fetch_add(1);
  for (++round; here->num_times.load() < round * here->num_ranks;) std::this_thread::sleep_for(1ms);
}

/// Whether `body(rank)` was true in a process for every rank.
bool true_in_processes(int num_ranks, const std::function<bool(int)>& body) {
  void* const shared =
      ::mmap(nullptr, sizeof(Here), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return false;
  here = new (shared) Here;
  here->num_ranks = num_ranks;
  std::vector<pid_t> children;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      log::configure("off");
      _exit(body(rank) ? 0 : 1);
    }
    children.push_back(child);
  }
  bool all = true;
  for (const pid_t child : children) {
    int code = -1;
    all = waitpid(child, &code, 0) == child && code == 0 && all;
  }
  ::munmap(shared, sizeof(Here));
  return all;
}

/// Signs, waits until all have signed as NCCL's init does, and opens.
Status sign_and_open(const std::string& key, int rank, int num_ranks) {
  auto seat = Seat::sign(key);
  if (!seat.ok()) return seat.status();
  all_are_here();
  return (*seat)->open(rank, num_ranks, 0);
}

/// Past the meeting and the comm, up to the GPU.
bool came_to_the_gpu(const Status& status) {
  const std::string& text = status.message();
  return status.code() == Code::kUnavailable &&
         (text.find("libcuda") != std::string::npos || text.find("kernel") != std::string::npos ||
          text.find("driver") != std::string::npos);
}

TEST(Seat, RanksWithoutAGpuMeetAndAgreeOnNcclIn) {
  if (check_machine().ok()) GTEST_SKIP() << "this machine has a GPU";
  const std::string key = fresh_seat_key();
  EXPECT_TRUE(true_in_processes(3, [&](int rank) {
    const int64_t began_ns = now_ns();
    const Status status = sign_and_open(key, rank, 3);
    const bool is_expected = came_to_the_gpu(status);
    if (!is_expected) std::fprintf(stderr, "rank %d: %s\n", rank, status.to_string().c_str());
    return is_expected && now_ns() - began_ns < 20_s;
  }));
}

TEST(Seat, AnIncompleteRollIsLeftWithoutWaiting) {
  const std::string key = fresh_seat_key();
  EXPECT_TRUE(true_in_processes(2, [&](int rank) {
    const int64_t began_ns = now_ns();
    const Status status = sign_and_open(key, rank, 3);
    return status.code() == Code::kUnsupported && now_ns() - began_ns < kSoon;
  }));
}

TEST(Seat, AnAbortEndsTheWaitForTheOthers) {
  const std::string key = fresh_seat_key();
  EXPECT_TRUE(true_in_processes(2, [&](int rank) {
    auto seat = Seat::sign(key);
    if (!seat.ok()) return false;
    all_are_here();
    if (rank == 1) {  // never comes to a call, and stays
      all_are_here();
      return true;
    }
    std::thread aborter([&] {
      std::this_thread::sleep_for(300ms);
      (*seat)->close(false);
    });
    const int64_t began_ns = now_ns();
    const Status status = (*seat)->open(rank, 2, 0);
    aborter.join();
    all_are_here();
    return status.code() == Code::kUnavailable && now_ns() - began_ns < kSoon;
  }));
}

// NCCL makes the children of a split that does not block in the background: a rank may have nothing
// to keep its seat by.
TEST(Seat, ASeatThatIsGivenUpEndsTheWaitOfTheOthers) {
  for (const bool at_exit : {false, true}) {
    const std::string key = fresh_seat_key();
    EXPECT_TRUE(true_in_processes(3, [&](int rank) {
      auto seat = Seat::sign(key);
      if (!seat.ok()) return false;
      all_are_here();
      if (rank == 1) {
        if (at_exit)
          (*seat)->leave();
        else
          seat->reset();
        all_are_here();
        return true;
      }
      if (rank == 2) std::this_thread::sleep_for(500ms);  // later than the one who gives up
      const int64_t began_ns = now_ns();
      const Status status = (*seat)->open(rank, 3, 0);
      const int64_t took_ns = now_ns() - began_ns;
      all_are_here();
      return status.code() == Code::kUnavailable && took_ns < kSoon;
    }));
  }
}

// Killed while the others are at their first call already. A fork that lives on is not the rank.
// NCCL failed when it was asked for it. The others waited 15 s for that rank to join their group.
TEST(Seat, ARankWithoutANumberIsNotWaitedFor) {
  const std::string key = fresh_seat_key();
  EXPECT_TRUE(true_in_processes(2, [&](int rank) {
    auto seat = Seat::sign(key);
    if (!seat.ok()) return false;
    all_are_here();
    const int64_t began_ns = now_ns();
    const Status status = (*seat)->open(rank == 1 ? -1 : rank, 2, 0);
    const int64_t took_ns = now_ns() - began_ns;
    all_are_here();  // it is there, and says nothing more
    return status.code() == (rank == 1 ? Code::kInternal : Code::kUnavailable) && took_ns < kSoon;
  }));
}

TEST(Seat, ARankThatEndsWithoutAWordIsNotWaitedFor) {
  for (const bool leaves_a_fork : {false, true}) {
    const std::string key = fresh_seat_key();
    EXPECT_TRUE(true_in_processes(3, [&](int rank) {
      auto seat = Seat::sign(key);
      if (!seat.ok()) return false;
      all_are_here();
      if (rank == 1) {
        if (leaves_a_fork && fork() == 0) std::this_thread::sleep_for(5s);
        if (!leaves_a_fork) std::this_thread::sleep_for(300ms);
        _exit(0);
      }
      const int64_t began_ns = now_ns();
      const Status status = (*seat)->open(rank, 3, 0);
      return status.code() == Code::kUnavailable && now_ns() - began_ns < kSoon;
    }));
  }
}

TEST(Seat, AMeetingHasADeadlineOfItsOwn) {
  const std::string key = fresh_seat_key();
  EXPECT_TRUE(true_in_processes(2, [&](int rank) {
    setenv("BRAID_NCCL_MEET", "300ms", 1);  // NOLINT(concurrency-mt-unsafe): one thread
    auto seat = Seat::sign(key);
    if (!seat.ok()) return false;
    all_are_here();
    if (rank == 1) {  // never comes to a call, and stays
      all_are_here();
      return true;
    }
    const int64_t began_ns = now_ns();
    const Status status = (*seat)->open(rank, 2, 0);
    const int64_t took_ns = now_ns() - began_ns;
    all_are_here();
    return status.code() == Code::kUnavailable && took_ns < kSoon;
  }));
}

// An abort waited for the 15 s that ranks have to join their group.
TEST(Seat, AnAbortEndsTheWaitForOneThatDoesNotJoin) {
  const std::string key = fresh_seat_key();
  EXPECT_TRUE(true_in_processes(2, [&](int rank) {
    auto seat = Seat::sign(key);
    if (!seat.ok()) return false;
    // Before the other one can seal it, behind which the name is another roll's.
    auto roll = rank == 1 ? Roll::open(key) : Result<Roll>(unavailable("rank 0 has its seat"));
    all_are_here();
    if (rank == 1) {
      const auto is_aborted = [] { return false; };
      const Deadline deadline = Deadline::after_ns(10_s);
      const bool has_come = roll.ok() && roll->arrive(2, deadline, is_aborted).ok() &&
                            roll->find_rendezvous(deadline, is_aborted).ok();
      all_are_here();
      all_are_here();
      return has_come;
    }
    int64_t began_ns = 0;
    std::thread aborter([&] {
      all_are_here();  // this rank serves the group by now
      began_ns = now_ns();
      (*seat)->close(false);
    });
    const Status status = (*seat)->open(rank, 2, 0);
    aborter.join();
    const int64_t took_ns = now_ns() - began_ns;
    all_are_here();
    return status.code() == Code::kUnavailable && took_ns < kSoon;
  }));
}

/// Comes to the meeting, joins the group, and then does nothing more.
bool stall_while_set_up(const std::string& key) {
  auto seat = Seat::sign(key);  // for a signature that fits
  auto roll = Roll::open(key);
  if (!seat.ok() || !roll.ok()) return false;
  all_are_here();
  const auto is_aborted = [] { return false; };
  const Deadline deadline = Deadline::after_ns(10_s);
  if (!roll->arrive(2, deadline, is_aborted).ok()) return false;
  const auto rendezvous = roll->find_rendezvous(deadline, is_aborted);
  if (!rendezvous.ok()) return false;
  group::Identity identity;
  identity.rank = identity.local_rank = 1;
  identity.size = 2;
  identity.store_port = rendezvous->port;
  identity.job_token = rendezvous->token;
  identity.job_id = roll->name();
  const auto group = group::Group::join(identity, Config(), deadline);
  if (!group.ok()) return false;
  all_are_here();
  return true;
}

TEST(Seat, ARankThatStallsWhileItIsSetUpIsNotWaitedForLongerThanForItsComing) {
  const std::string key = fresh_seat_key();
  EXPECT_TRUE(true_in_processes(2, [&](int rank) {
    setenv("BRAID_NCCL_MEET", "1s", 1);  // NOLINT(concurrency-mt-unsafe): one thread
    if (rank == 1) return stall_while_set_up(key);
    auto seat = Seat::sign(key);
    if (!seat.ok()) return false;
    all_are_here();
    const int64_t began_ns = now_ns();
    const Status status = (*seat)->open(rank, 2, 0);
    const int64_t took_ns = now_ns() - began_ns;
    all_are_here();
    return status.code() == Code::kUnavailable && took_ns < kSoon &&
           status.message().find("in time") != std::string::npos;
  }));
}

TEST(Seat, RanksOfOneProcessMeetOnThreads) {
  if (check_machine().ok()) GTEST_SKIP() << "this machine has a GPU";
  for (const char* const may_share : {"on", "off"}) {
    const std::string key = fresh_seat_key();
    EXPECT_TRUE(true_in_processes(2, [&](int process) {
      setenv("BRAID_NCCL_SHARED", may_share, 1);  // NOLINT(concurrency-mt-unsafe): one thread
      std::vector<std::unique_ptr<Seat>> seats;
      for (int i = 0; i < 2; ++i) {
        auto seat = Seat::sign(key);
        if (!seat.ok()) return false;
        seats.push_back(std::move(seat).value());
      }
      all_are_here();
      std::vector<Status> answers(2);
      std::vector<std::thread> threads;
      for (size_t i = 0; i < 2; ++i)
        threads.emplace_back([&, i] {
          answers[i] = seats[i]->open(2 * process + static_cast<int>(i), 4, static_cast<int>(i));
        });
      for (std::thread& thread : threads) thread.join();
      for (const Status& answer : answers)
        if (may_share == std::string("on") ? !came_to_the_gpu(answer)
                                           : answer.code() != Code::kUnsupported)
          return false;
      return true;
    }));
  }
}

TEST(Seat, AForkDoesNotGiveItsParentsSeatUp) {
  if (check_machine().ok()) GTEST_SKIP() << "this machine has a GPU";
  const std::string key = fresh_seat_key();
  EXPECT_TRUE(true_in_processes(2, [&](int rank) {
    auto seat = Seat::sign(key);
    if (!seat.ok()) return false;
    const pid_t child = fork();
    if (child == 0) {
      (*seat)->close(false);
      _exit(0);
    }
    int code = -1;
    if (waitpid(child, &code, 0) != child || code != 0) return false;
    all_are_here();
    return came_to_the_gpu((*seat)->open(rank, 2, 0));
  }));
}

TEST(Seat, ClosingWhatWasNeverOpenedIsFine) {
  auto seat = Seat::sign(fresh_seat_key());
  ASSERT_TRUE(seat.ok()) << seat.status().to_string();
  EXPECT_TRUE((*seat)->status().ok());
  (*seat)->close(true);
  (*seat)->close(false);
  (*seat)->leave();
}

}  // namespace
}  // namespace braid::nccl
