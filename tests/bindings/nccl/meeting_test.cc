// Ranks that wait for each other, on threads: a core in which opening, running and closing a
// communicator come back when all its ranks have come, or fail after a while.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "bindings/nccl/shim.h"

namespace braid::nccl {
namespace {

constexpr auto kPatience = std::chrono::seconds(3);

void* pointer(uintptr_t value) { return reinterpret_cast<void*>(value); }

/// Where two come to, by name; true when both did.
class Meetings {
 public:
  bool come(const std::string& name) {
    std::unique_lock lock(mutex_);
    const int number = ++num_come_[name];
    changed_.notify_all();
    const int all = (number + 1) / 2 * 2;
    return changed_.wait_for(lock, kPatience, [&] { return num_come_[name] >= all; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, int> num_come_;
};

struct Crowd {
  Meetings meetings;
  std::mutex mutex;  // of what follows
  std::vector<std::string> keys;
  std::vector<std::string> joins;
  int num_opened = 0, num_mapped = 0, num_raced = 0, num_run = 0, num_closed = 0;
  bool run_meets = false;  // else a run comes back at once
  uint32_t won = 0x1ff, won_in_windows = 0x1ff;
  std::set<std::thread::id> runners;
};
Crowd* crowd;
thread_local bool has_real_call = false;  // in this thread's real group

const std::string& key_of_seat(braid_nccl_seat* seat) {
  const std::lock_guard lock(crowd->mutex);
  return crowd->keys[reinterpret_cast<uintptr_t>(seat) - 1];
}

bool count_meeting(const std::string& name, int& counter) {
  const bool met = crowd->meetings.come(name);
  const std::lock_guard lock(crowd->mutex);
  counter += met ? 1 : 0;
  return met;
}

int race_of(braid_nccl_seat* seat, int op, bool in_windows, const braid_nccl_real* real,
            braid_nccl_choice& choice) {
  choice.measured = 0x1ff;
  choice.won = in_windows ? crowd->won_in_windows : crowd->won;
  if (real == nullptr) return 0;
  const std::string name =
      "race " + std::to_string(op) + (in_windows ? " in windows" : "") + " of " + key_of_seat(seat);
  if (!count_meeting(name, crowd->num_raced)) return 6;
  braid_nccl_call call{};
  call.op = op;
  call.count = 1;
  return real->run(real->context, &call) != 0 ? 6 : 0;
}

const braid_nccl_core* meeting_core() {
  static const braid_nccl_core core{
      BRAID_NCCL_CORE_VERSION,
      [](char*, braid_nccl_why) { return 0; },
      [](const void* key, size_t bytes, uint64_t, braid_nccl_why) -> braid_nccl_seat* {
        const std::lock_guard lock(crowd->mutex);
        crowd->keys.reserve(64);
        crowd->keys.emplace_back(static_cast<const char*>(key), bytes);
        return static_cast<braid_nccl_seat*>(pointer(crowd->keys.size()));
      },
      [](braid_nccl_seat*) {},
      [](braid_nccl_seat* seat, const braid_nccl_place*, braid_nccl_why) {
        return count_meeting("open " + key_of_seat(seat), crowd->num_opened) ? 1 : 0;
      },
      [](braid_nccl_seat* seat, int op, int, int in_windows, const braid_nccl_real* real,
         braid_nccl_choice* choice,
         braid_nccl_why) { return race_of(seat, op, in_windows != 0, real, *choice); },
      [](braid_nccl_seat* seat, const braid_nccl_call*, braid_nccl_why) {
        {
          const std::lock_guard lock(crowd->mutex);
          crowd->runners.insert(std::this_thread::get_id());
        }
        if (!crowd->run_meets) return 0;
        return count_meeting("run " + key_of_seat(seat), crowd->num_run) ? 0 : 6;
      },
      [](braid_nccl_seat* seat, void*, uint64_t, braid_nccl_why) {
        return count_meeting("map " + key_of_seat(seat), crowd->num_mapped) ? 0 : 6;
      },
      [](braid_nccl_seat*, void*, braid_nccl_why) { return 0; },
      [](braid_nccl_seat* seat, void* const* streams, size_t num_streams, braid_nccl_why) {
        std::string line = std::to_string(reinterpret_cast<uintptr_t>(seat)) + ":";
        for (size_t i = 0; i < num_streams; ++i)
          line += " " + std::to_string(reinterpret_cast<uintptr_t>(streams[i]));
        const std::lock_guard lock(crowd->mutex);
        crowd->joins.push_back(line);
        return 0;
      },
      [](int, void*) { return 0; },
      [](braid_nccl_seat*, braid_nccl_why) { return 0; },
      [](braid_nccl_seat*) {},
      [](braid_nccl_seat* seat, int in_peace) {
        if (in_peace != 0) count_meeting("close " + key_of_seat(seat), crowd->num_closed);
      },
      [](braid_nccl_seat*) {}};
  return &core;
}

/// Its first group that has a call meets the other rank, as NCCL's connecting does. The address of
/// a communicator is 10 times its GPU, and some.
Real meeting_real() {
  Real real{};
  real.version = [](int*) { return NcclResult::kInvalidUsage; };
  real.get_async_error = [](NcclComm, NcclResult* error) {
    *error = NcclResult::kSuccess;
    return NcclResult::kSuccess;
  };
  real.count = [](NcclComm, int* count) {
    *count = 2;
    return NcclResult::kSuccess;
  };
  real.user_rank = real.device = [](NcclComm comm, int* number) {
    *number = static_cast<int>(reinterpret_cast<uintptr_t>(comm) / 10);
    return NcclResult::kSuccess;
  };
  real.group_start = [] { return NcclResult::kSuccess; };
  real.group_end = [] {
    const bool has_call = std::exchange(has_real_call, false);
    return !has_call || crowd->meetings.come("real") ? NcclResult::kSuccess
                                                     : NcclResult::kSystemError;
  };
  real.window_register = [](NcclComm, void*, size_t, void** window, int) {
    *window = pointer(7);
    return NcclResult::kSuccess;
  };
  real.all_reduce = [](const void*, void*, size_t, int, int, NcclComm, CudaStream) {
    has_real_call = true;
    return NcclResult::kSuccess;
  };
  real.all_gather = [](const void*, void*, size_t, int, NcclComm, CudaStream) {
    has_real_call = true;
    return NcclResult::kSuccess;
  };
  real.destroy = [](NcclComm) { return NcclResult::kSuccess; };
  real.finalize = real.destroy;
  real.abort = real.destroy;
  return real;
}

class MeetingTest : public testing::Test {
 protected:
  MeetingTest() {
    crowd = &crowd_;
    has_real_call = false;
  }

  static void make_comm(Shim& shim, const std::string& key, uintptr_t address) {
    NcclComm comm = nullptr;
    const auto make = [&] {
      comm = pointer(address);
      return NcclResult::kSuccess;
    };
    EXPECT_EQ(shim.create(key, 2, &comm, make), NcclResult::kSuccess);
  }
  static Call call_of(uintptr_t comm, uintptr_t stream = 0) {
    Call call;
    call.comm = pointer(comm);
    call.count = 8;
    call.dtype = 7;
    call.stream = pointer(stream);
    return call;
  }
  static Call large_call_of(uintptr_t comm) {
    Call call = call_of(comm);
    call.count = 1 << 20;
    return call;
  }
  static Call handed_on_call(uintptr_t comm) {
    Call call = call_of(comm);
    call.redop = 9;
    return call;
  }
  static NcclResult in_group(Shim& shim, const std::vector<Call>& calls) {
    shim.group_start();
    for (const Call& call : calls) EXPECT_EQ(shim.submit(call), NcclResult::kSuccess);
    return shim.group_end();
  }

  Crowd crowd_;
  Shim one_{meeting_real(), Settings{}, meeting_core},
      other_{meeting_real(), Settings{}, meeting_core};
};

// One rank has both in a group; the other meets them one by one, in either order.
TEST_F(MeetingTest, CommunicatorsOfAGroupAreSetUpInAnyOrder) {
  for (const bool is_backwards : {false, true}) {
    const std::string round = is_backwards ? "2" : "1";
    for (Shim* const shim : {&one_, &other_}) {
      make_comm(*shim, "a" + round, 1);
      make_comm(*shim, "b" + round, 2);
    }
    std::thread grouped([&] { in_group(one_, {call_of(1), call_of(2)}); });
    other_.submit(call_of(is_backwards ? 2 : 1));
    other_.submit(call_of(is_backwards ? 1 : 2));
    grouped.join();
  }
  EXPECT_EQ(crowd_.num_opened, 8);
}

// One thread has both ranks: mapping waits for the other one.
TEST_F(MeetingTest, WindowsOfRanksOfOneThreadAreMappedSideBySide) {
  make_comm(one_, "k", 1);
  make_comm(one_, "k", 11);
  void* window = nullptr;
  for (const bool is_set_up : {false, true}) {
    one_.group_start();
    for (const uintptr_t comm : {1, 11})
      one_.add_window(pointer(comm), pointer(500), 8, &window, kSymmetric);
    EXPECT_EQ(one_.group_end(), NcclResult::kSuccess);
    EXPECT_EQ(in_group(one_, {call_of(1), call_of(11)}), NcclResult::kSuccess);
    EXPECT_EQ(crowd_.num_mapped, is_set_up ? 4 : 2);
  }
}

// NCCL's own waiting for the ranks of a communicator that it keeps, and ours, on both sides in
// another order.
TEST_F(MeetingTest, NcclAndWeDoNotWaitForEachOtherCrosswise) {
  for (Shim* const shim : {&one_, &other_}) {
    make_comm(*shim, "ours", 1);
    make_comm(*shim, "nccls", 2);
  }
  std::thread grouped(
      [&] { EXPECT_EQ(in_group(one_, {call_of(1), handed_on_call(2)}), NcclResult::kSuccess); });
  EXPECT_EQ(in_group(other_, {handed_on_call(2)}), NcclResult::kSuccess);
  EXPECT_EQ(other_.submit(call_of(1)), NcclResult::kSuccess);
  grouped.join();
  EXPECT_EQ(crowd_.num_opened, 2);
}

// Races wait for the other rank, too, in whatever way each of them comes to the communicators.
TEST_F(MeetingTest, RacesMeetInAnyOrder) {
  Settings raced;
  raced.chosen_by = ChosenBy::kRace;
  Shim one{meeting_real(), raced, meeting_core}, other{meeting_real(), raced, meeting_core};
  for (const bool is_backwards : {false, true}) {
    const std::string round = is_backwards ? "2" : "1";
    for (Shim* const shim : {&one, &other}) {
      make_comm(*shim, "a" + round, 1);
      make_comm(*shim, "b" + round, 2);
    }
    std::thread grouped([&] { in_group(one, {call_of(1), call_of(2)}); });
    other.submit(call_of(is_backwards ? 2 : 1));
    other.submit(call_of(is_backwards ? 1 : 2));
    grouped.join();
  }
  EXPECT_EQ(crowd_.num_raced, 8);
  EXPECT_EQ(one.counts().taken[0] + other.counts().taken[0], 8U);
}

// A group that waits for a communicator of NCCL's at its end maps new windows meanwhile: the other rank
// may be at those first.
TEST_F(MeetingTest, NewWindowsAreMappedBesideTheRealGroup) {
  Settings raced;
  raced.chosen_by = ChosenBy::kRace;
  Shim one{meeting_real(), raced, meeting_core}, other{meeting_real(), raced, meeting_core};
  void* window = nullptr;
  for (Shim* const shim : {&one, &other}) {
    make_comm(*shim, "ours", 1);
    make_comm(*shim, "nccls", 2);
  }
  std::thread first([&] { one.submit(call_of(1)); });
  other.submit(call_of(1));
  first.join();
  EXPECT_EQ(crowd_.num_raced, 2);
  for (Shim* const shim : {&one, &other})
    shim->add_window(pointer(1), pointer(500), 8, &window, kSymmetric);
  std::thread grouped(
      [&] { EXPECT_EQ(in_group(one, {call_of(1), handed_on_call(2)}), NcclResult::kSuccess); });
  EXPECT_EQ(other.submit(call_of(1)), NcclResult::kSuccess);
  EXPECT_EQ(in_group(other, {handed_on_call(2)}), NcclResult::kSuccess);
  grouped.join();
  EXPECT_EQ(crowd_.num_mapped, 2);
}

// Whoever comes to it in a group, and whose it would be elsewhere.
TEST_F(MeetingTest, ACallInANewWindowMeetsInOrOutsideOfAGroup) {
  Settings raced;
  raced.chosen_by = ChosenBy::kRace;
  crowd_.won = 0;
  Shim one{meeting_real(), raced, meeting_core}, other{meeting_real(), raced, meeting_core};
  Call call = call_of(1);
  const auto on_both = [&](bool is_grouped) {
    std::thread first([&] { is_grouped ? in_group(one, {call}) : one.submit(call); });
    EXPECT_EQ(other.submit(call), NcclResult::kSuccess);
    first.join();
  };
  for (Shim* const shim : {&one, &other}) make_comm(*shim, "ours", 1);
  on_both(false);
  EXPECT_EQ(one.counts().taken[0] + other.counts().taken[0], 0U);
  void* window = nullptr;
  for (Shim* const shim : {&one, &other})
    shim->add_window(pointer(1), pointer(500), 64, &window, kSymmetric);
  on_both(false);
  EXPECT_EQ(crowd_.num_mapped, 0) << "elsewhere";
  call.send = call.recv = pointer(532);
  on_both(true);
  EXPECT_EQ(crowd_.num_mapped, 2);
  EXPECT_EQ(crowd_.num_raced, 4);
  EXPECT_EQ(one.counts().taken[0], 1U);
  EXPECT_EQ(other.counts().taken[0], 1U);
}

TEST_F(MeetingTest, RanksOfOneThreadRaceSideBySide) {
  Settings raced;
  raced.chosen_by = ChosenBy::kRace;
  Shim shim{meeting_real(), raced, meeting_core};
  make_comm(shim, "k", 1);
  make_comm(shim, "k", 11);
  Call gather = call_of(1), other_gather = call_of(11);
  gather.op = other_gather.op = Op::kAllGather;
  EXPECT_EQ(in_group(shim, {call_of(1), gather, other_gather, call_of(11)}), NcclResult::kSuccess);
  EXPECT_EQ(crowd_.num_raced, 4);
}

/// One process, one thread, the two ranks of a communicator: 10 and 20 on GPUs 1 and 2.
class OneThreadTest : public MeetingTest {
 protected:
  OneThreadTest() {
    std::vector<NcclComm> comms(2);
    const auto make = [&] {
      comms = {pointer(10), pointer(20)};
      return NcclResult::kSuccess;
    };
    EXPECT_EQ(one_.create_all(2, comms.data(), make), NcclResult::kSuccess);
  }
};

TEST_F(OneThreadTest, RanksOfAGroupMeet) {
  crowd_.run_meets = true;
  EXPECT_EQ(crowd_.keys.size(), 2U);
  EXPECT_EQ(crowd_.keys[0], crowd_.keys[1]);
  for (int round = 1; round <= 2; ++round) {
    EXPECT_EQ(in_group(one_, {call_of(10), large_call_of(10), large_call_of(20), call_of(20)}),
              NcclResult::kSuccess);
    EXPECT_EQ(crowd_.num_opened, 2);
    EXPECT_EQ(crowd_.num_run, 4 * round);
  }
  EXPECT_EQ(one_.counts().taken[0], 8U);
}

TEST_F(OneThreadTest, LittleWorkNeedsNoThreads) {
  in_group(one_, {call_of(20), call_of(10)});
  for (const bool is_large : {false, true}) {
    crowd_.runners.clear();
    if (is_large)
      in_group(one_, {large_call_of(20), large_call_of(10)});
    else
      in_group(one_, {call_of(20), call_of(10)});
    EXPECT_EQ(crowd_.runners.size(), is_large ? 2U : 1U);
    EXPECT_TRUE(crowd_.runners.contains(std::this_thread::get_id()));
  }
}

// In another thread cudaStreamPerThread, which is called 2, is not the stream that the caller
// means.
TEST_F(OneThreadTest, AThreadsOwnStreamIsUsedInIt) {
  in_group(one_, {call_of(20), call_of(10)});
  crowd_.runners.clear();
  Call large = large_call_of(20);
  large.stream = pointer(2);
  in_group(one_, {large, large_call_of(10)});
  EXPECT_EQ(crowd_.runners, (std::set{std::this_thread::get_id()}));
}

TEST_F(OneThreadTest, EveryGpuJoinsItsOwnStreams) {
  in_group(one_, {call_of(10, 0), call_of(20, 0)});
  EXPECT_TRUE(crowd_.joins.empty()) << "the default streams of two GPUs are not one";
  in_group(one_, {call_of(10, 5), call_of(20, 7), call_of(20, 8), call_of(10, 6), call_of(10, 5)});
  EXPECT_EQ(crowd_.joins, (std::vector<std::string>{"1: 5 6", "2: 7 8", "1: 5 6", "2: 7 8"}));
}

TEST_F(OneThreadTest, RanksPartWithTheLastOne) {
  in_group(one_, {call_of(10), call_of(20)});
  one_.destroy(pointer(10));
  EXPECT_EQ(crowd_.num_closed, 0) << "nobody waits for a rank that this thread has yet to let go";
  one_.destroy(pointer(20));
  EXPECT_EQ(crowd_.num_closed, 2);
}

TEST_F(OneThreadTest, RanksThatAreFinalizedPartOnce) {
  in_group(one_, {call_of(10), call_of(20)});
  one_.finalize(pointer(10));
  one_.finalize(pointer(20));
  EXPECT_EQ(crowd_.num_closed, 2);
  one_.destroy(pointer(10));
  one_.destroy(pointer(20));
  EXPECT_EQ(crowd_.num_closed, 2);
}

TEST_F(OneThreadTest, TwoCallsOfInitAllAreTwoCommunicators) {
  std::vector<NcclComm> comms(2);
  const auto make = [&] {
    comms = {pointer(30), pointer(40)};
    return NcclResult::kSuccess;
  };
  one_.create_all(2, comms.data(), make);
  EXPECT_NE(crowd_.keys[0], crowd_.keys[2]);
}

}  // namespace
}  // namespace braid::nccl
