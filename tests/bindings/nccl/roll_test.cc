// Rolls between threads, which see the same page as processes do, and between processes.
#include "bindings/nccl/core/roll.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/units.h"

namespace braid::nccl {
namespace {

std::string fresh_key() {
  static std::random_device device;
  return "test " + std::to_string(getpid()) + " " + std::to_string(device());
}

Roll opened(const std::string& key) {
  auto roll = Roll::open(key);
  EXPECT_TRUE(roll.ok()) << roll.status().to_string();
  return std::move(roll).value();
}

const auto never = [] { return false; };
Deadline soon() { return Deadline::after_ns(100_ms); }
Deadline far() { return Deadline::after_ns(20_s); }

TEST(Roll, IsCompleteWhenAllHaveSigned) {
  const std::string key = fresh_key();
  Roll a = opened(key), b = opened(key);
  ASSERT_TRUE(a.sign({1, 7}).ok());
  EXPECT_EQ(a.check(2, false).code(), Code::kUnsupported);
  ASSERT_TRUE(b.sign({2, 7}).ok());
  EXPECT_TRUE(a.check(2, false).ok());
  EXPECT_TRUE(b.check(2, false).ok());
  EXPECT_FALSE(a.check(3, false).ok()) << "a rank of another host never signs here";
  a.seal();
  EXPECT_TRUE(b.check(2, false).ok()) << "the page outlives its name";
  Roll late = opened(key);
  EXPECT_FALSE(late.check(2, false).ok());
  late.seal();
}

// Two hosts that share /dev/shm (network namespaces, Pods with a host's memory): neither's roll is
// whole with the other's ranks, or they would wait for each other over loopback.
TEST(Roll, IsOneHostsAlone) {
  const std::string key = fresh_key();
  auto here = Roll::open(key, "host a"), there = Roll::open(key, "host b");
  ASSERT_TRUE(here.ok() && there.ok());
  ASSERT_TRUE(here->sign({1, 7}).ok());
  ASSERT_TRUE(there->sign({2, 7}).ok());
  EXPECT_EQ(here->check(2, false).code(), Code::kUnsupported);
  EXPECT_EQ(there->check(2, false).code(), Code::kUnsupported);
  here->seal();
  there->seal();
}

TEST(Roll, SharedProcessesNeedLeaveAndSettingsMustBeEqual) {
  const std::string key = fresh_key(), other_key = fresh_key();
  Roll a = opened(key);
  ASSERT_TRUE(a.sign({1, 7}).ok());
  ASSERT_TRUE(a.sign({1, 7}).ok());
  EXPECT_FALSE(a.check(2, false).ok());
  EXPECT_TRUE(a.check(2, true).ok());
  Roll b = opened(other_key);
  ASSERT_TRUE(b.sign({1, 7}).ok());
  ASSERT_TRUE(b.sign({2, 8}).ok());
  EXPECT_FALSE(b.check(2, true).ok());
  a.seal();
  b.seal();
}

// Behind the set-up: all ranks race, or none does.
TEST(Roll, AllComeToAMeetingOrNoneDoes) {
  const std::string key = fresh_key();
  Roll a = opened(key), b = opened(key);
  a.seal();
  std::thread other([&] { EXPECT_TRUE(b.meet(3, 2, far(), never)); });
  EXPECT_TRUE(a.meet(3, 2, far(), never));
  other.join();
  EXPECT_FALSE(a.meet(4, 2, soon(), never)) << "nobody comes";
  EXPECT_FALSE(b.meet(4, 2, far(), never)) << "it has come to nothing, and this rank does not wait";
  // Crosswise: each is at another one, and both go on.
  std::thread crossing([&] { EXPECT_FALSE(b.meet(6, 2, soon(), never)); });
  EXPECT_FALSE(a.meet(5, 2, soon(), never));
  crossing.join();
  EXPECT_FALSE(a.meet(6, 2, far(), never));
  EXPECT_FALSE(b.meet(5, 2, far(), never));
  EXPECT_FALSE(a.meet(7, 2, far(), [] { return true; })) << "broken off";
}

TEST(Roll, MoreRanksThanSeatsAreNeverComplete) {
  Roll roll = opened(fresh_key());
  roll.seal();
  for (uint64_t i = 0; i < BRAID_NCCL_MOST_RANKS + 3; ++i)
    EXPECT_EQ(roll.sign({i, 7}).ok(), i < BRAID_NCCL_MOST_RANKS);
  EXPECT_FALSE(roll.check(BRAID_NCCL_MOST_RANKS + 3, false).ok());
  EXPECT_FALSE(roll.check(BRAID_NCCL_MOST_RANKS, false).ok());
}

TEST(Roll, OnlyTheUserMayReadIt) {
  const std::string key = fresh_key();
  Roll roll = opened(key);
  const int fd = shm_open(roll.name().c_str(), O_RDWR, 0);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(fchmod(fd, 0644), 0);
  close(fd);
  EXPECT_EQ(Roll::open(key).status().code(), Code::kUnavailable);
  roll.seal();
}

/// Runs `body` for every rank on a thread of its own and returns whether each was ok.
std::vector<bool> on_ranks(int num_ranks, const std::string& key,
                           const std::function<Status(Roll&, int)>& body) {
  std::vector<std::thread> threads;
  std::vector<Roll> rolls;
  std::vector<int> oks(static_cast<size_t>(num_ranks));
  for (int r = 0; r < num_ranks; ++r) rolls.push_back(opened(key));
  rolls.front().seal();
  for (int r = 0; r < num_ranks; ++r)
    threads.emplace_back([&, r] {
      oks[static_cast<size_t>(r)] = body(rolls[static_cast<size_t>(r)], r).ok() ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  return {oks.begin(), oks.end()};
}

TEST(Roll, RanksArriveWhenTheyLike) {
  const auto ok = on_ranks(4, fresh_key(), [](Roll& roll, int rank) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20 * rank));
    return roll.arrive(4, far(), never);
  });
  EXPECT_EQ(ok, std::vector<bool>(4, true));
}

TEST(Roll, WhoGivesUpGivesUpForAll) {
  const auto ok = on_ranks(3, fresh_key(), [](Roll& roll, int rank) {
    return roll.arrive(4, rank == 1 ? soon() : far(), never);
  });
  EXPECT_EQ(ok, std::vector<bool>(3, false));
}

TEST(Roll, AnAbortEndsTheWait) {
  const std::string key = fresh_key();
  Roll keeper = opened(key);
  std::atomic<bool> aborted{false};
  std::thread aborter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    aborted = true;
  });
  EXPECT_FALSE(keeper.arrive(2, far(), [&] { return aborted.load(); }).ok());
  aborter.join();
  Roll late = opened(key);
  EXPECT_FALSE(late.arrive(2, far(), never).ok()) << "one verdict, whenever it is asked for";
  keeper.seal();
}

TEST(Roll, OneNoIsEveryonesNo) {
  for (int refuser = 0; refuser < 4; ++refuser) {
    const auto ok = on_ranks(4, fresh_key(), [&](Roll& roll, int rank) {
      return roll.vote(rank != refuser, 4, far(), never);
    });
    EXPECT_EQ(ok, std::vector<bool>(4, false));
  }
  const auto ok =
      on_ranks(4, fresh_key(), [](Roll& roll, int) { return roll.vote(true, 4, far(), never); });
  EXPECT_EQ(ok, std::vector<bool>(4, true));
}

// Deadlines that pass at the very moment of the last arrival: both outcomes are right, mixed ones
// never.
TEST(Roll, NoOutcomeIsMixed) {
  for (int round = 0; round < 200; ++round) {
    const auto ok = on_ranks(3, fresh_key(), [&](Roll& roll, int rank) {
      if (rank == 2) std::this_thread::sleep_for(std::chrono::microseconds(1000 + round * 3));
      return roll.arrive(3, Deadline::after_ns(1'300'000), never);
    });
    EXPECT_TRUE(ok == std::vector<bool>(3, true) || ok == std::vector<bool>(3, false));
  }
}

TEST(Roll, ProcessesMeet) {
  const std::string key = fresh_key();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  const auto play = [&](int rank) -> bool {
    auto roll = Roll::open(key);
    if (!roll.ok()) return false;
    if (!roll->sign({static_cast<uint64_t>(getpid()), 7}).ok()) return false;
    if (!roll->arrive(2, far(), never).ok() || !roll->check(2, false).ok()) return false;
    if (rank == 0) roll->publish({4711, std::string(64, 'x')});
    const auto found = roll->find_rendezvous(far(), never);
    return found.ok() && found.value().port == 4711 &&
           found.value().token == std::string(64, 'x') && roll->vote(true, 2, far(), never).ok();
  };
  if (child == 0) _exit(play(1) ? 0 : 1);
  EXPECT_TRUE(play(0));
  int code = -1;
  ASSERT_EQ(waitpid(child, &code, 0), child);
  EXPECT_EQ(code, 0);
  opened(key).seal();
}

// A name that is used twice: the second page is not the first one's to take away.
TEST(Roll, SealTakesAwayOnlyItsOwnName) {
  const std::string key = fresh_key();
  Roll old = opened(key);
  old.seal();
  Roll fresh = opened(key);
  ASSERT_TRUE(fresh.sign({1, 7}).ok());
  old.seal();
  Roll other = opened(key);
  ASSERT_TRUE(other.sign({2, 7}).ok());
  EXPECT_TRUE(fresh.check(2, false).ok()) << "both are on one page";
  fresh.seal();
  EXPECT_LT(shm_open(fresh.name().c_str(), O_RDWR, 0), 0);
}

/// Whether `wait` comes to an end in seconds when the other rank ends without a word.
bool ends_when_the_other_dies(const std::string& key,
                              const std::function<void(Roll&)>& before_death,
                              const std::function<Status(Roll&)>& wait) {
  Roll roll = opened(key);
  EXPECT_TRUE(roll.sign({static_cast<uint64_t>(getpid()), 7}).ok());
  const pid_t child = fork();
  if (child == 0) {
    auto theirs = Roll::open(key);
    if (!theirs.ok() || !theirs->sign({static_cast<uint64_t>(getpid()), 7}).ok()) _exit(1);
    before_death(*theirs);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    _exit(0);
  }
  while (!roll.check(2, false).ok()) std::this_thread::yield();
  const int64_t began_ns = now_ns();
  const Status status = wait(roll);
  const bool is_soon = now_ns() - began_ns < 3_s;
  int code = -1;
  EXPECT_EQ(waitpid(child, &code, 0), child);
  EXPECT_EQ(code, 0);
  roll.seal();
  return is_soon && status.code() == Code::kUnavailable;
}

TEST(Roll, NobodyWaitsForTheDead) {
  EXPECT_TRUE(ends_when_the_other_dies(
      fresh_key(), [](Roll&) {}, [](Roll& roll) { return roll.arrive(2, far(), never); }));
  EXPECT_TRUE(ends_when_the_other_dies(
      fresh_key(), [](Roll& theirs) { (void)theirs.arrive(2, soon(), never); },
      [](Roll& roll) { return roll.find_rendezvous(far(), never).status(); }));
  EXPECT_TRUE(ends_when_the_other_dies(
      fresh_key(), [](Roll& theirs) { (void)theirs.arrive(2, soon(), never); },
      [](Roll& roll) { return roll.vote(true, 2, far(), never); }));
}

}  // namespace
}  // namespace braid::nccl
