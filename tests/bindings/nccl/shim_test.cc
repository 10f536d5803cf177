// What the shim decides and in which order things happen: a real library and a core that only write
// down what they are asked.
#include "bindings/nccl/shim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <latch>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/sanitizer.h"
#include "bindings/nccl/choice.h"

namespace braid::nccl {
namespace {

using testing::AnyOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;
using testing::UnorderedElementsAre;

// Function tables have no place for `this`.
struct World {
  std::mutex mutex;
  std::vector<std::string> log;  // under the mutex: communicators of a group open on threads
  std::map<std::string, NcclResult> answers;  // of the real library, by name
  NcclResult async = NcclResult::kSuccess;
  int num_ranks = 2;
  NcclComm next_comm = nullptr;

  bool may_sign = true, may_open = true, is_capturing = false;
  int run_code = 0, status_code = 0, map_code = 0, race_code = 0;
  int open_answer = BRAID_NCCL_TAKEN;
  int opened_at = -1;  // the operation
  braid_nccl_choice choice{}, choice_in_windows{};
  std::function<void(const braid_nccl_real&)> on_race;
  void* next_window = nullptr;
  std::map<braid_nccl_seat*, std::string> keys;
  int num_seats = 0;
  uint64_t settings = 0;
  std::function<void()> on_open, on_interrupt, on_close, on_ask;

  void add(const std::string& line) {
    const std::lock_guard lock(mutex);
    log.push_back(line);
  }
  NcclResult note(const std::string& name, const std::string& rest = "") {
    add("real " + name + rest);
    return answers.contains(name) ? answers[name] : NcclResult::kSuccess;
  }
};
World* world;

std::string number(const void* pointer) {
  return std::to_string(reinterpret_cast<uintptr_t>(pointer));
}
void* handle(uintptr_t value) { return reinterpret_cast<void*>(value); }

NcclResult made(const std::string& name, NcclComm* comm) {
  *comm = world->next_comm;
  return world->note(name);
}

Real fake_real() {
  Real real{};
  real.version = [](int* version) {
    *version = 22809;
    return NcclResult::kSuccess;
  };
  real.unique_id = [](UniqueId* id) {
    std::memset(id->bytes, 0, sizeof id->bytes);
    return world->note("id");
  };
  real.init_rank = [](NcclComm* comm, int, UniqueId, int) { return made("init", comm); };
  real.split = [](NcclComm, int, int, NcclComm* child, void*) { return made("split", child); };
  real.shrink = [](NcclComm, int*, int, NcclComm* child, void*, int) {
    return made("shrink", child);
  };
  real.finalize = [](NcclComm) { return world->note("finalize"); };
  real.destroy = [](NcclComm) { return world->note("destroy"); };
  real.abort = [](NcclComm) { return world->note("abort"); };
  real.revoke = [](NcclComm, int) { return world->note("revoke"); };
  real.mem_alloc = [](void** memory, size_t bytes) {
    *memory = handle(4000);
    return world->note("take", " " + std::to_string(bytes));
  };
  real.mem_free = [](void* memory) { return world->note("give back", " " + number(memory)); };
  real.window_register = [](NcclComm, void*, size_t, void** window, int) {
    const NcclResult result = world->note("window");
    if (is_good(result) && world->async == NcclResult::kSuccess) *window = world->next_window;
    return result;
  };
  real.window_deregister = [](NcclComm, void* window) {
    return world->note("no window", " " + number(window));
  };
  real.get_async_error = [](NcclComm, NcclResult* error) {
    if (world->on_ask) world->on_ask();
    *error = world->async;
    return NcclResult::kSuccess;
  };
  real.get_last_error = [](NcclComm) { return "real's words"; };
  real.count = [](NcclComm, int* count) {
    *count = world->num_ranks;
    return NcclResult::kSuccess;
  };
  real.user_rank = real.device = [](NcclComm, int* number) {
    *number = 0;
    return NcclResult::kSuccess;
  };
  real.group_start = [] { return world->note("start"); };
  real.group_end = [] { return world->note("end"); };
  real.group_simulate_end = [](void*) { return world->note("simulate"); };
  real.all_reduce = [](const void*, void*, size_t count, int, int, NcclComm comm, CudaStream) {
    return world->note("all_reduce", " " + std::to_string(count) + " on " + number(comm));
  };
  real.all_gather = [](const void*, void*, size_t count, int, NcclComm, CudaStream) {
    return world->note("all_gather", " " + std::to_string(count));
  };
  real.reduce_scatter = [](const void*, void*, size_t count, int, int, NcclComm, CudaStream) {
    return world->note("reduce_scatter", " " + std::to_string(count));
  };
  real.all_to_all = [](const void*, void*, size_t count, int, NcclComm, CudaStream) {
    return world->note("all_to_all", " " + std::to_string(count));
  };
  real.send = [](const void*, size_t, int, int peer, NcclComm, CudaStream) {
    return world->note("send", " " + std::to_string(peer));
  };
  real.recv = [](void*, size_t, int, int peer, NcclComm, CudaStream) {
    return world->note("recv", " " + std::to_string(peer));
  };
  return real;
}

int tell(int code, braid_nccl_why why) {
  if (code != 0) std::snprintf(why.text, why.bytes, "code %d", code);
  return code;
}

const braid_nccl_core* fake_core() {
  static const braid_nccl_core core{
      BRAID_NCCL_CORE_VERSION,
      [](char* id, braid_nccl_why) {
        id[127] = 'm';
        return 0;
      },
      [](const void* key, size_t bytes, uint64_t settings, braid_nccl_why why) -> braid_nccl_seat* {
        world->settings = settings;
        if (!world->may_sign) return tell(3, why), nullptr;
        auto* seat = static_cast<braid_nccl_seat*>(
            handle(1000 + static_cast<uintptr_t>(world->num_seats++)));
        world->keys[seat] = std::string(static_cast<const char*>(key), bytes);
        world->add("sign");
        return seat;
      },
      [](braid_nccl_seat*) { world->add("seal"); },
      [](braid_nccl_seat* seat, const braid_nccl_place* place, braid_nccl_why why) {
        world->opened_at = place->op;
        world->add("open " + world->keys[seat]);
        if (world->on_open) world->on_open();
        tell(world->may_open ? 0 : 3, why);
        return world->may_open ? world->open_answer : 0;
      },
      [](braid_nccl_seat* seat, int op, int is_large, int in_windows, const braid_nccl_real* real,
         braid_nccl_choice* choice, braid_nccl_why why) {
        world->add((real != nullptr ? "race " : "room for ") +
                   std::string(is_large != 0 ? "large " : "") +
                   std::string(op_name(static_cast<Op>(op))) +
                   (in_windows != 0 ? " in windows" : "") + " of " + world->keys[seat]);
        const braid_nccl_choice& known = in_windows != 0 ? world->choice_in_windows : world->choice;
        if (real != nullptr && world->on_race) world->on_race(*real);
        const uint32_t sizes = is_large != 0 ? 0x1c0 : 0x3f;
        if (world->race_code == 0) *choice = {known.measured & sizes, known.won & sizes};
        return tell(world->race_code, why);
      },
      [](braid_nccl_seat*, const braid_nccl_call* call, braid_nccl_why why) {
        world->add("run " + std::string(op_name(static_cast<Op>(call->op))) + " " +
                   std::to_string(call->count));
        return tell(world->run_code, why);
      },
      [](braid_nccl_seat*, void* memory, uint64_t bytes, braid_nccl_why why) {
        world->add("map " + number(memory) + " of " + std::to_string(bytes));
        return tell(world->map_code, why);
      },
      [](braid_nccl_seat*, void* memory, braid_nccl_why why) {
        world->add("unmap " + number(memory));
        return tell(0, why);
      },
      [](braid_nccl_seat*, void* const*, size_t num_streams, braid_nccl_why) {
        world->add("join " + std::to_string(num_streams));
        return 0;
      },
      [](int, void*) { return world->is_capturing ? 1 : 0; },
      [](braid_nccl_seat*, braid_nccl_why why) { return tell(world->status_code, why); },
      [](braid_nccl_seat*) {
        world->add("interrupt");
        if (world->on_interrupt) world->on_interrupt();
      },
      [](braid_nccl_seat*, int in_peace) {
        world->add(in_peace != 0 ? "close" : "break off");
        if (world->on_close) world->on_close();
      },
      [](braid_nccl_seat*) { world->add("release"); }};
  return &core;
}

/// Does nothing at all.
Real quiet_real() {
  Real real{};
  real.split = [](NcclComm, int, int, NcclComm*, void*) { return NcclResult::kSuccess; };
  real.shrink = [](NcclComm, int*, int, NcclComm*, void*, int) { return NcclResult::kSuccess; };
  real.finalize = real.destroy = real.abort = [](NcclComm) { return NcclResult::kSuccess; };
  real.revoke = [](NcclComm, int) { return NcclResult::kSuccess; };
  real.get_async_error = [](NcclComm, NcclResult* error) {
    *error = NcclResult::kSuccess;
    return NcclResult::kSuccess;
  };
  real.get_last_error = [](NcclComm) { return ""; };
  real.window_register = [](NcclComm, void*, size_t, void**, int) { return NcclResult::kSuccess; };
  real.window_deregister = [](NcclComm, void*) { return NcclResult::kSuccess; };
  real.group_start = real.group_end = [] { return NcclResult::kSuccess; };
  real.group_simulate_end = [](void*) { return NcclResult::kSuccess; };
  real.all_reduce = [](const void*, void*, size_t, int, int, NcclComm, CudaStream) {
    return NcclResult::kSuccess;
  };
  return real;
}

void use_everything(Shim& shim) {
  NcclComm comm = handle(9), child = nullptr;
  NcclResult error = NcclResult::kSuccess;
  shim.create("c", 2, &child, [] { return NcclResult::kSuccess; });
  shim.create_all(1, &child, [] { return NcclResult::kSuccess; });
  shim.split(comm, 0, 0, &child, nullptr);
  shim.shrink(comm, nullptr, 0, &child, nullptr, 0);
  shim.get_async_error(comm, &error);
  shim.get_last_error(comm);
  void* window = nullptr;
  shim.add_window(comm, nullptr, 0, &window, kSymmetric);
  shim.drop_window(comm, window);
  Call call;
  call.comm = comm;
  shim.group_start();
  shim.submit(call);
  shim.group_simulate_end(nullptr);
  shim.group_start();
  shim.group_end();
  shim.revoke(comm, 0);
  shim.finalize(comm);
  shim.destroy(comm);
  shim.abort(comm);
}

class ShimTest : public testing::Test {
 protected:
  ShimTest() { world = &world_; }

  NcclComm make(uintptr_t address, const std::string& key, int num_ranks = 2) {
    world->next_comm = handle(address);
    world->num_ranks = num_ranks;
    NcclComm comm = nullptr;
    EXPECT_EQ(shim_.create(key, num_ranks, &comm,
                           [&] { return fake_real().init_rank(&comm, num_ranks, {}, 0); }),
              NcclResult::kSuccess);
    return comm;
  }
  static Call call_on(NcclComm comm, size_t count, uintptr_t stream = 1) {
    Call call;
    call.comm = comm;
    call.count = count;
    call.dtype = 7;
    call.stream = handle(stream);
    return call;
  }
  static Call odd_call_on(NcclComm comm, size_t count) {  // one that is handed on
    Call call = call_on(comm, count);
    call.redop = 9;
    return call;
  }
  NcclResult submit(const Call& call) { return shim_.submit(call); }
  std::vector<std::string> log() { return std::exchange(world_.log, {}); }

  World world_;
  Settings settings_;
  Shim shim_{fake_real(), settings_, fake_core};
};

TEST_F(ShimTest, ACommunicatorIsSignedForBeforeItIsMadeAndOpenedAtItsFirstCall) {
  const NcclComm comm = make(1, "k");
  EXPECT_THAT(log(), ElementsAre("sign", "real init", "seal"));
  EXPECT_EQ(submit(call_on(comm, 8)), NcclResult::kSuccess);
  EXPECT_EQ(submit(call_on(comm, 9)), NcclResult::kSuccess);
  EXPECT_THAT(log(), ElementsAre("open k", "run all_reduce 8", "run all_reduce 9"));
  EXPECT_EQ(shim_.destroy(comm), NcclResult::kSuccess);
  EXPECT_THAT(log(), ElementsAre("close", "release", "real destroy"));
  EXPECT_EQ(submit(call_on(comm, 8)), NcclResult::kSuccess);
  EXPECT_THAT(log(), ElementsAre("real all_reduce 8 on 1"));
}

TEST_F(ShimTest, WhatCannotBeTakenOverIsHandedOn) {
  submit(call_on(handle(77), 8));
  EXPECT_THAT(log(), ElementsAre("real all_reduce 8 on 77")) << "nobody knows it";
  const NcclComm comm = make(1, "k");
  log();
  submit(odd_call_on(comm, 8));
  submit(call_on(comm, 0));
  EXPECT_THAT(log(), ElementsAre("real all_reduce 8 on 1", "real all_reduce 0 on 1"));
  const NcclComm alone = make(2, "a", 1), large = make(3, "l", 17);
  EXPECT_THAT(log(), ElementsAre("real init", "real init")) << "not even signed for";
  submit(call_on(alone, 8));
  submit(call_on(large, 8));
  EXPECT_THAT(log(), ElementsAre("real all_reduce 8 on 2", "real all_reduce 8 on 3"));
}

TEST_F(ShimTest, RanksThatDoNotOpenAreLeftToNcclForGood) {
  const NcclComm comm = make(1, "k");
  log();
  world->may_open = false;
  submit(call_on(comm, 8));
  world->may_open = true;
  submit(call_on(comm, 9));
  EXPECT_THAT(log(), ElementsAre("open k", "real all_reduce 8 on 1", "real all_reduce 9 on 1"));
}

TEST_F(ShimTest, ARankThatMayNotSignHandsOn) {
  world->may_sign = false;
  const NcclComm comm = make(1, "k");
  submit(call_on(comm, 8));
  EXPECT_THAT(log(), ElementsAre("real init", "real all_reduce 8 on 1"));
}

TEST_F(ShimTest, ACaptureOpensNothing) {
  const NcclComm comm = make(1, "k");
  log();
  world->is_capturing = true;
  submit(call_on(comm, 8));
  EXPECT_THAT(log(), ElementsAre("real all_reduce 8 on 1"));
  world->is_capturing = false;
  submit(call_on(comm, 8));
  world->is_capturing = true;
  submit(call_on(comm, 9));
  EXPECT_THAT(log(), ElementsAre("open k", "run all_reduce 8", "run all_reduce 9"));
}

TEST_F(ShimTest, ACommunicatorThatIsStillBeingMadeIsNotTouched) {
  world->answers["init"] = NcclResult::kInProgress;
  world->async = NcclResult::kInProgress;
  world->next_comm = handle(1);
  NcclComm comm = nullptr;
  EXPECT_EQ(shim_.create("k", 2, &comm, [&] { return fake_real().init_rank(&comm, 2, {}, 0); }),
            NcclResult::kInProgress);
  EXPECT_THAT(log(), ElementsAre("sign", "real init")) << "not sealed: others may still sign";
  submit(call_on(comm, 8));
  world->async = NcclResult::kSuccess;
  submit(call_on(comm, 9));
  EXPECT_THAT(log(), ElementsAre("real all_reduce 8 on 1", "open k", "run all_reduce 9"));
}

TEST_F(ShimTest, ChildrenHaveNamesOfTheirOwn) {
  const NcclComm parent = make(1, "k");
  log();
  world->num_ranks = 2;
  NcclComm a = nullptr, b = nullptr, none = nullptr;
  world->next_comm = handle(2);
  shim_.split(parent, 5, 0, &a, nullptr);
  world->next_comm = nullptr;
  shim_.split(parent, kNoColor, 0, &none, nullptr);
  world->next_comm = handle(3);
  shim_.split(parent, 5, 0, &b, nullptr);
  EXPECT_THAT(
      log(), ElementsAre("sign", "real split", "seal", "real split", "sign", "real split", "seal"));
  submit(call_on(a, 8));
  submit(call_on(b, 8));
  EXPECT_THAT(log(), ElementsAre("open k/split0:5", "run all_reduce 8", "open k/split2:5",
                                 "run all_reduce 8"));
  int gone[] = {3, 1};
  NcclComm small = nullptr;
  world->next_comm = handle(4);
  shim_.shrink(parent, gone, 2, &small, nullptr, kShrinkAbort);
  EXPECT_THAT(log(), ElementsAre("interrupt", "sign", "real shrink", "seal", "break off"));
  submit(call_on(small, 8));
  EXPECT_THAT(log(), ElementsAre("open k/shrink:1,3,0:", "run all_reduce 8"));
}

// Ranks that were left out of one shrink, and did not call it, are in the next.
TEST_F(ShimTest, AShrinkThatIsRepeatedHasAnotherName) {
  const NcclComm parent = make(1, "k");
  const auto name_of = [&](std::vector<int> gone) {
    NcclComm child = nullptr;
    world->next_comm = handle(2);
    shim_.shrink(parent, gone.data(), static_cast<int>(gone.size()), &child, nullptr, 0);
    submit(call_on(child, 8));
    const auto opened = log();
    return *std::find_if(opened.begin(), opened.end(),
                         [](const std::string& line) { return line.starts_with("open"); });
  };
  EXPECT_EQ(name_of({3}), "open k/shrink:3,0:");
  EXPECT_EQ(name_of({3}), "open k/shrink:3,1:");
  EXPECT_EQ(name_of({2}), "open k/shrink:2,0:") << "rank 3 has not seen the others";
}

TEST_F(ShimTest, AnAddressThatIsUsedAgainIsAnotherCommunicator) {
  make(1, "old");
  const NcclComm comm = make(1, "new", 1);
  log();
  submit(call_on(comm, 8));
  EXPECT_THAT(log(), ElementsAre("real all_reduce 8 on 1"));
}

TEST_F(ShimTest, AGroupKeepsWhatItTakesOverUntilItsEnd) {
  const NcclComm comm = make(1, "k");
  log();
  shim_.group_start();
  shim_.group_start();
  submit(call_on(comm, 8));
  submit(odd_call_on(comm, 9));
  submit(call_on(comm, 10));
  shim_.group_end();
  EXPECT_THAT(log(), ElementsAre("real start", "real start", "real all_reduce 9 on 1", "real end"));
  shim_.group_end();
  const auto after_start = log();
  EXPECT_EQ(after_start.size(), 4U) << "the real end and the opening, beside each other";
  EXPECT_THAT(std::vector(after_start.begin() + 2, after_start.end()),
              ElementsAre("run all_reduce 8", "run all_reduce 10"));
}

// Peers on `x` may have nothing else in their groups, or something handed on at another place: what
// is on `x` and what is handed on come in one order everywhere.
TEST_F(ShimTest, TheOrderOfAGroupDoesNotDependOnWhereACallStands) {
  const NcclComm x = make(1, "x");
  submit(call_on(x, 1));
  log();
  for (const bool begins_with_real : {true, false}) {
    shim_.group_start();
    if (begins_with_real) submit(odd_call_on(x, 9));
    submit(call_on(x, 8));
    if (!begins_with_real) submit(odd_call_on(x, 9));
    shim_.group_end();
    EXPECT_THAT(
        log(), ElementsAre("real start", "real all_reduce 9 on 1", "real end", "run all_reduce 8"));
  }
}

// On one stream, two ranks that enqueued them crosswise would wait for each other on the GPU.
TEST_F(ShimTest, CommunicatorsOfAGroupRunInAnOrderThatAllRanksShare) {
  const NcclComm z = make(1, "z"), a = make(2, "a");
  submit(call_on(z, 1));
  submit(call_on(a, 1));
  log();
  shim_.group_start();
  submit(call_on(z, 8));
  submit(call_on(a, 9));
  submit(call_on(z, 10));
  shim_.group_end();
  EXPECT_THAT(log(), ElementsAre("real start", "real end", "run all_reduce 9", "run all_reduce 8",
                                 "run all_reduce 10"));
}

// What one rank has on communicator "a" must not depend on what else it has in its group: its peers
// there may not see that.
TEST_F(ShimTest, ADecisionIsForACallNotForAGroup) {
  const NcclComm a = make(1, "a"), b = make(2, "b");
  log();
  shim_.group_start();
  submit(call_on(a, 8));
  submit(odd_call_on(b, 9));
  shim_.group_end();
  EXPECT_THAT(log(), UnorderedElementsAre("real start", "real all_reduce 9 on 2", "open a",
                                          "run all_reduce 8", "real end"));
}

TEST_F(ShimTest, WhatDoesNotOpenGoesIntoTheRealGroup) {
  const NcclComm comm = make(1, "k");
  log();
  world->may_open = false;
  shim_.group_start();
  submit(call_on(comm, 8));
  shim_.group_end();
  EXPECT_THAT(log(), UnorderedElementsAre("real start", "open k", "real end", "real start",
                                          "real all_reduce 8 on 1", "real end"));
  shim_.group_start();
  submit(call_on(comm, 9));
  shim_.group_end();
  EXPECT_THAT(log(), ElementsAre("real start", "real all_reduce 9 on 1", "real end"));
}

TEST_F(ShimTest, StreamsOfAGroupWaitForEachOther) {
  const NcclComm comm = make(1, "k");
  submit(call_on(comm, 1));
  log();
  shim_.group_start();
  submit(call_on(comm, 8, 1));
  submit(call_on(comm, 9, 2));
  shim_.group_end();
  EXPECT_THAT(log(), ElementsAre("real start", "real end", "join 2", "run all_reduce 8",
                                 "run all_reduce 9", "join 2"));
}

// One that is too large for us, say, and another that is not.
TEST_F(ShimTest, StreamsOfNcclsCallsInAGroupAreWaitedForToo) {
  const NcclComm comm = make(1, "k"), other = make(2, "other");
  submit(call_on(comm, 1));
  submit(call_on(other, 1));
  const auto odd = [](NcclComm of, size_t count, uintptr_t stream) {
    Call call = odd_call_on(of, count);
    call.stream = handle(stream);
    return call;
  };
  log();
  shim_.group_start();
  submit(odd(comm, 8, 1));
  submit(odd(other, 7, 3));
  submit(call_on(comm, 9, 2));
  shim_.group_end();
  EXPECT_THAT(log(), ElementsAre("real start", "real all_reduce 8 on 1", "real all_reduce 7 on 2",
                                 "real end", "join 2", "run all_reduce 9", "join 2"));
  shim_.group_start();
  submit(odd(comm, 8, 2));
  submit(call_on(comm, 9, 2));
  shim_.group_end();
  EXPECT_THAT(log(),
              ElementsAre("real start", "real all_reduce 8 on 1", "real end", "run all_reduce 9"));
}

// They are read once, and a rank may have changed its environment since.
TEST_F(ShimTest, TheSettingsThatDecideAreThoseThatRanksCompare) {
  std::set<uint64_t> seen;
  std::vector<Settings> all(6);
  all[1].ops[0] = false;
  all[2].least_bytes = 8;
  all[3].most_bytes = 8;
  all[4].is_grouped_exchange = true;
  all[5].chosen_by = ChosenBy::kNothing;
  for (const Settings& each : all) {
    Shim shim(fake_real(), each, fake_core);
    NcclComm comm = nullptr;
    world->next_comm = handle(1);
    shim.create("k", 2, &comm, [&] { return fake_real().init_rank(&comm, 2, {}, 0); });
    EXPECT_EQ(world->settings, fingerprint(each));
    seen.insert(world->settings);
  }
  EXPECT_EQ(seen.size(), all.size());
}

TEST_F(ShimTest, ARefusedCallEndsTheGroup) {
  const NcclComm comm = make(1, "k");
  log();
  world->answers["all_reduce"] = NcclResult::kInvalidArgument;
  shim_.group_start();
  submit(call_on(comm, 8));
  EXPECT_EQ(submit(odd_call_on(comm, 9)), NcclResult::kInvalidArgument);
  EXPECT_EQ(shim_.group_end(), NcclResult::kInvalidArgument);
  EXPECT_THAT(log(), ElementsAre("real start", "real all_reduce 9 on 1", "real end"));
  submit(call_on(comm, 8));
  EXPECT_THAT(log(), ElementsAre("open k", "run all_reduce 8")) << "the next one is not affected";
}

TEST_F(ShimTest, AnEndWithoutAStartIsNccls) {
  world->answers["end"] = NcclResult::kInvalidUsage;
  EXPECT_EQ(shim_.group_end(), NcclResult::kInvalidUsage);
  EXPECT_THAT(log(), ElementsAre("real end"));
}

TEST_F(ShimTest, ASimulationRunsNothing) {
  const NcclComm comm = make(1, "k");
  log();
  shim_.group_start();
  submit(call_on(comm, 8));
  shim_.group_simulate_end(nullptr);
  EXPECT_THAT(log(), ElementsAre("real start", "real all_reduce 8 on 1", "real simulate"));
}

TEST_F(ShimTest, CommunicatorsMadeInAGroupAreKnownAtItsEnd) {
  NcclComm comm = nullptr;
  world->next_comm = handle(1);
  shim_.group_start();
  shim_.create("k", 2, &comm, [&] { return fake_real().init_rank(&comm, 2, {}, 0); });
  EXPECT_THAT(log(), ElementsAre("real start", "sign", "real init"));
  shim_.group_end();
  EXPECT_THAT(log(), ElementsAre("real end", "seal"));
  submit(call_on(comm, 8));
  EXPECT_THAT(log(), ElementsAre("open k", "run all_reduce 8"));
}

// NCCL forbids it. Whatever it answers, nothing of ours breaks.
TEST_F(ShimTest, AGroupMayMixMakingAndCalling) {
  const NcclComm old = make(1, "k");
  world->may_open = false;
  NcclComm comm = nullptr;
  world->next_comm = handle(2);
  log();
  shim_.group_start();
  shim_.create("l", 2, &comm, [&] { return fake_real().init_rank(&comm, 2, {}, 0); });
  submit(call_on(old, 8));
  shim_.group_end();
  EXPECT_THAT(log(),
              UnorderedElementsAre("real start", "sign", "real init", "open k", "real end", "seal",
                                   "real start", "real all_reduce 8 on 1", "real end"));
}

constexpr int kWindowFlags = kSymmetric;

TEST_F(ShimTest, WindowsAreMappedAtTheNextCallAndOnce) {
  const NcclComm comm = make(1, "k");
  log();
  void* window = nullptr;
  world_.next_window = handle(77);
  EXPECT_EQ(shim_.add_window(comm, handle(500), 8, &window, kWindowFlags), NcclResult::kSuccess);
  EXPECT_EQ(window, handle(77));
  submit(call_on(comm, 8));
  submit(call_on(comm, 9));
  EXPECT_THAT(log(), ElementsAre("real window", "open k", "map 500 of 8", "run all_reduce 8",
                                 "run all_reduce 9"));
  world_.next_window = handle(78);
  shim_.add_window(comm, handle(600), 16, &window, kWindowFlags);
  submit(call_on(comm, 8));
  EXPECT_THAT(log(), ElementsAre("real window", "map 600 of 16", "run all_reduce 8"));
}

TEST_F(ShimTest, AWindowThatCannotBeMappedChangesNothing) {
  const NcclComm comm = make(1, "k");
  void* window = nullptr;
  world_.next_window = handle(77);
  shim_.add_window(comm, handle(500), 8, &window, kWindowFlags);
  world_.map_code = 3;
  EXPECT_EQ(submit(call_on(comm, 8)), NcclResult::kSuccess);
  log();
  EXPECT_EQ(shim_.drop_window(comm, window), NcclResult::kSuccess);
  submit(call_on(comm, 8));
  EXPECT_THAT(log(), ElementsAre("real no window 77", "run all_reduce 8"));
}

// The other ranks wait for this one where they map it.
TEST_F(ShimTest, AWindowThatIsGivenBackBeforeACallIsMappedByNobody) {
  const NcclComm comm = make(1, "k");
  void* window = nullptr;
  world_.next_window = handle(77);
  shim_.add_window(comm, handle(500), 8, &window, kWindowFlags);
  shim_.drop_window(comm, window);
  log();
  submit(call_on(comm, 8));
  EXPECT_THAT(log(), ElementsAre("open k", "map 0 of 8", "run all_reduce 8"));
}

TEST_F(ShimTest, AWindowIsUnmappedBeforeItIsGivenBack) {
  const NcclComm comm = make(1, "k");
  void* window = nullptr;
  world_.next_window = handle(77);
  shim_.add_window(comm, handle(500), 8, &window, kWindowFlags);
  submit(call_on(comm, 8));
  log();
  shim_.drop_window(comm, window);
  shim_.drop_window(comm, window);  // NCCL's to answer
  EXPECT_THAT(log(), ElementsAre("unmap 500", "real no window 77", "real no window 77"));
}

TEST_F(ShimTest, OnlySymmetricWindowsThatWereMadeAreUsed) {
  const NcclComm comm = make(1, "k");
  void* window = nullptr;
  shim_.add_window(comm, handle(500), 8, &window, 0);
  world_.answers["window"] = NcclResult::kInvalidArgument;
  EXPECT_EQ(shim_.add_window(comm, handle(500), 8, &window, kWindowFlags),
            NcclResult::kInvalidArgument);
  EXPECT_EQ(shim_.add_window(handle(99), handle(500), 8, &window, kWindowFlags),
            NcclResult::kInvalidArgument);
  log();
  submit(call_on(comm, 8));
  EXPECT_THAT(log(), ElementsAre("open k", "run all_reduce 8"));
}

TEST_F(ShimTest, WindowsOfAGroupAreMadeAtItsEnd) {
  const NcclComm comm = make(1, "k");
  log();
  void* window = nullptr;
  shim_.group_start();
  world_.answers["window"] = NcclResult::kInProgress;
  shim_.add_window(comm, handle(500), 8, &window, kWindowFlags);
  window = handle(77);
  shim_.group_end();
  submit(call_on(comm, 8));
  EXPECT_THAT(log(), ElementsAre("real start", "real window", "real end", "open k", "map 500 of 8",
                                 "run all_reduce 8"));
  shim_.drop_window(comm, window);
  EXPECT_THAT(log(), ElementsAre("unmap 500", "real no window 77"));
}

TEST_F(ShimTest, AWindowThatIsMadeInTheBackgroundIsKnownWhenItIsDone) {
  const NcclComm comm = make(1, "k");
  submit(call_on(comm, 8));
  void* window = nullptr;
  world_.async = NcclResult::kInProgress;  // 2.28 answers success, and has written nothing yet
  EXPECT_EQ(shim_.add_window(comm, handle(500), 8, &window, kWindowFlags), NcclResult::kSuccess);
  NcclResult error = NcclResult::kSuccess;
  shim_.get_async_error(comm, &error);
  window = handle(77);
  world_.async = NcclResult::kSuccess;
  shim_.get_async_error(comm, &error);
  submit(call_on(comm, 8));
  log();
  shim_.drop_window(comm, handle(77));
  EXPECT_THAT(log(), ElementsAre("unmap 500", "real no window 77"));
}

// NCCL answers success and no window where it has no use for one: nobody says when its memory goes.
TEST_F(ShimTest, AWindowThatNcclHasNoUseForIsMappedByNobody) {
  const NcclComm comm = make(1, "k");
  submit(call_on(comm, 8));
  log();
  void* window = handle(3);
  shim_.add_window(comm, handle(500), 8, &window, kWindowFlags);
  EXPECT_EQ(window, nullptr);
  submit(call_on(comm, 8));
  EXPECT_THAT(log(), ElementsAre("real window", "map 0 of 8", "run all_reduce 8"));
}

TEST_F(ShimTest, AWindowBelongsToTheCallsOfItsGroup) {
  const NcclComm comm = make(1, "k");
  submit(call_on(comm, 8));
  log();
  void* window = nullptr;
  world_.next_window = handle(77);
  shim_.group_start();
  submit(call_on(comm, 9));
  shim_.add_window(comm, handle(500), 8, &window, kWindowFlags);
  shim_.group_end();
  EXPECT_THAT(log(), ElementsAre("real start", "real window", "real end", "map 500 of 8",
                                 "run all_reduce 9"));
}

TEST_F(ShimTest, ErrorsOfACallAreNcclsErrorsAndStay) {
  const NcclComm comm = make(1, "k");
  world->run_code = 7;  // peer_lost
  EXPECT_EQ(submit(call_on(comm, 8)), NcclResult::kRemoteError);
  EXPECT_STREQ(shim_.get_last_error(comm), "code 7");
  EXPECT_STREQ(shim_.get_last_error(handle(5)), "real's words");
  log();
  EXPECT_EQ(submit(call_on(comm, 8)), NcclResult::kRemoteError)
      << "never handed on: others are in it";
  EXPECT_THAT(log(), ElementsAre("run all_reduce 8"));
}

TEST_F(ShimTest, WatchdogsHearOfTrouble) {
  const NcclComm comm = make(1, "k");
  world->status_code = 6;  // timeout
  NcclResult error = NcclResult::kSuccess;
  EXPECT_EQ(shim_.get_async_error(comm, &error), NcclResult::kSuccess);
  EXPECT_EQ(error, NcclResult::kSuccess) << "not ours yet";
  submit(call_on(comm, 8));
  EXPECT_EQ(shim_.get_async_error(comm, &error), NcclResult::kSuccess);
  EXPECT_EQ(error, NcclResult::kRemoteError);
  world->async = NcclResult::kInternalError;
  shim_.get_async_error(comm, &error);
  EXPECT_EQ(error, NcclResult::kInternalError) << "the real one's goes first";
}

TEST_F(ShimTest, EndsOfACommunicator) {
  const NcclComm a = make(1, "a"), b = make(2, "b"), c = make(3, "c");
  for (const NcclComm comm : {a, b, c}) submit(call_on(comm, 8));
  log();
  shim_.abort(a);
  EXPECT_THAT(log(), ElementsAre("interrupt", "real abort", "break off", "release"));
  shim_.finalize(b);
  EXPECT_THAT(log(), ElementsAre("close", "real finalize"));
  submit(call_on(b, 8));
  EXPECT_THAT(log(), ElementsAre("real all_reduce 8 on 2")) << "an error that NCCL tells";
  shim_.revoke(c, 0);
  EXPECT_THAT(log(), ElementsAre("interrupt", "real revoke", "break off"));
}

// A call of ours behind a kernel of NCCL's on a stream ends after it, and that one when NCCL breaks
// it off: a rank that waited for ours first waited for good.
TEST_F(ShimTest, AnAbortWaitsForNothingBeforeNcclHasBrokenOff) {
  const NcclComm a = make(1, "a");
  submit(call_on(a, 8));
  log();
  const auto is_broken_off = [&] {
    return std::find(world_.log.begin(), world_.log.end(), "real abort") != world_.log.end();
  };
  bool was_before_interrupt = true, was_before_close = false;
  world->on_interrupt = [&] { was_before_interrupt = is_broken_off(); };
  world->on_close = [&] { was_before_close = is_broken_off(); };
  shim_.abort(a);
  EXPECT_FALSE(was_before_interrupt) << "NCCL's kernel may lie behind ours, too";
  EXPECT_TRUE(was_before_close);
}

// NCCL's communicator was called while NCCL took it down.
TEST_F(ShimTest, ACallThatWaitsWhileItsCommunicatorIsAbortedIsNotHandedOn) {
  for (const bool in_group : {false, true}) {
    const NcclComm comm = make(1, "k");
    world->may_open = false;
    world->on_open = [&] { std::thread([&] { shim_.abort(comm); }).join(); };
    log();
    if (in_group) shim_.group_start();
    NcclResult result = submit(call_on(comm, 8));
    if (in_group) result = shim_.group_end();
    EXPECT_EQ(result, NcclResult::kRemoteError);
    EXPECT_THAT(log(), Not(Contains(StartsWith("real all_reduce"))));
    world->on_open = nullptr;
  }
}

// It is still there, and NCCL has the words for such a call. The seat has none: it is closed.
TEST_F(ShimTest, CallsOnARevokedCommunicatorAreNcclsToRefuse) {
  for (const bool is_shrunk : {false, true}) {
    const NcclComm comm = make(1, "k");
    NcclComm child = nullptr;
    int gone = 1;
    world->next_comm = handle(2);
    if (is_shrunk)
      shim_.shrink(comm, &gone, 1, &child, nullptr, kShrinkAbort);
    else
      shim_.revoke(comm, 0);
    log();
    submit(call_on(comm, 8));
    EXPECT_THAT(log(), ElementsAre("real all_reduce 8 on 1"));
    shim_.group_start();
    submit(call_on(comm, 9));
    shim_.group_end();
    EXPECT_THAT(log(), ElementsAre("real start", "real all_reduce 9 on 1", "real end"));
  }
}

// What one has enqueued may lie behind what another has: neither ends before both are broken off.
TEST_F(ShimTest, CommunicatorsAbortedInAGroupAreBrokenOffTogether) {
  const NcclComm a = make(1, "a"), b = make(2, "b");
  for (const NcclComm comm : {a, b}) submit(call_on(comm, 8));
  log();
  std::atomic<int> num_closing{0};
  world->on_close = [&] {
    ++num_closing;
    const Deadline deadline = Deadline::after_ns(10'000'000'000);
    while (num_closing < 2 && !deadline.passed()) std::this_thread::yield();
    EXPECT_EQ(num_closing, 2);
  };
  shim_.group_start();
  shim_.group_start();
  shim_.abort(a);
  shim_.abort(b);
  shim_.group_end();
  EXPECT_EQ(num_closing, 0) << "not before the outermost end";
  shim_.group_end();
  world->on_close = nullptr;
  EXPECT_THAT(log(), ElementsAre("real start", "real start", "interrupt", "real abort", "interrupt",
                                 "real abort", "real end", "break off", "break off", "release",
                                 "release", "real end"));
}

TEST_F(ShimTest, WhatNcclCallsOfItselfGoesStraightOn) {
  const NcclComm comm = make(1, "k");
  static Shim* shim;
  shim = &shim_;
  Real real = fake_real();
  real.all_gather = [](const void*, void*, size_t, int, NcclComm inner, CudaStream) {
    shim->group_start();
    const NcclResult result = shim->submit(call_on(inner, 8));
    shim->group_end();
    return result;
  };
  Shim outer(real, settings_, fake_core);
  log();
  Call call = call_on(comm, 3);
  call.op = Op::kAllGather;
  outer.submit(call);
  EXPECT_THAT(log(), ElementsAre("real start", "real all_reduce 8 on 1", "real end"));
}

TEST_F(ShimTest, AForkedChildHandsEverythingOn) {
  const NcclComm comm = make(1, "k");
  submit(call_on(comm, 8));
  log();
  shim_.disown();
  submit(call_on(comm, 8));
  shim_.destroy(comm);
  EXPECT_THAT(log(), ElementsAre("real all_reduce 8 on 1", "real destroy"));
}

// A child has its parent's locks as they were: one that a thread of the parent held stays locked.
TEST_F(ShimTest, AForkedChildTouchesNoLock) {
  const NcclComm comm = make(1, "k");
  submit(call_on(comm, 8));
  Shim quiet(quiet_real(), settings_, [] { return static_cast<const braid_nccl_core*>(nullptr); });
  std::atomic<bool> is_over{false};
  std::thread busy([&] {
    NcclComm made = nullptr;
    const auto make_one = [&] {
      made = handle(9);
      return NcclResult::kSuccess;
    };
    while (!is_over) {
      quiet.create("b", 2, &made, make_one);
      quiet.destroy(made);
    }
  });
  bool all_ended = true;
  for (int round = 0; round < 100 && all_ended; ++round) {
    quiet.group_start();
    const pid_t child = fork();
    if (child == 0) {
      alarm(5);
      quiet.disown();
      use_everything(quiet);
      _exit(0);
    }
    quiet.group_end();
    int code = -1;
    all_ended = waitpid(child, &code, 0) == child && code == 0;
    EXPECT_TRUE(all_ended) << "round " << round << ": " << code;
  }
  is_over = true;
  busy.join();
}

TEST_F(ShimTest, CommunicatorsCanBeMadeWithoutUs) {
  shim_.sign_for_more(false);
  const NcclComm theirs = make(1, "k");
  shim_.sign_for_more(true);
  const NcclComm ours = make(2, "l");
  log();
  submit(call_on(theirs, 8));
  submit(call_on(ours, 8));
  EXPECT_THAT(log(), ElementsAre("real all_reduce 8 on 1", "open l", "run all_reduce 8"));
}

TEST_F(ShimTest, CallsAreCounted) {
  const NcclComm comm = make(1, "k");
  submit(call_on(comm, 8));
  submit(call_on(comm, 8));
  submit(odd_call_on(comm, 8));
  EXPECT_EQ(shim_.counts().taken[0], 2U);
  EXPECT_EQ(shim_.counts().handed_on[0], 1U);
}

// What the drop-in adds to a call that NCCL does on a communicator that we know.
TEST_F(ShimTest, HandingOnCostsLittle) {
  constexpr double kMostNs = kIsSanitized ? 30 * 1000 : 300;  // a sanitizer's own
  Real real = quiet_real();
  real.get_async_error = fake_real().get_async_error;
  real.count = fake_real().count;
  real.user_rank = real.device = fake_real().device;
  Shim shim(real, settings_, fake_core);
  NcclComm comm = nullptr;
  shim.create("k", 2, &comm, [&] {
    comm = handle(5);
    return NcclResult::kSuccess;
  });
  const auto time_ns = [](const auto& call) {
    double best_ns = 1e9;
    for (int run = 0; run < 50; ++run) {
      const int64_t began_ns = now_ns();
      for (int i = 0; i < 1000; ++i) call();
      best_ns = std::min(best_ns, static_cast<double>(now_ns() - began_ns) / 1000);
    }
    return best_ns;
  };
  const Call call = odd_call_on(comm, 8);
  const double direct_ns = time_ns([&] {
    real.all_reduce(call.send, call.recv, call.count, call.dtype, call.redop, call.comm,
                    call.stream);
  });
  const double through_ns = time_ns([&] { shim.submit(call); });
  std::printf("a call: %.1f ns, handed on by the shim: %.1f ns\n", direct_ns, through_ns);
  EXPECT_LT(through_ns - direct_ns, kMostNs);
}

class ExchangeTest : public ShimTest {
 protected:
  ExchangeTest() { promise_.is_grouped_exchange = true; }
  void submit_exchange(Shim& shim, NcclComm comm, size_t count_of_last = 4) {
    for (int r = 0; r < 2; ++r) {
      Call send = call_on(comm, r == 1 ? count_of_last : 4);
      send.op = Op::kSend;
      send.root = r;
      send.send = memory_ + 16 * r;
      Call recv = send;
      recv.op = Op::kRecv;
      recv.recv = memory_ + 64 + 16 * r;
      shim.submit(send);
      shim.submit(recv);
    }
  }
  char memory_[128] = {};
  Settings promise_;
};

TEST_F(ExchangeTest, WithoutThePromiseItIsHandedOnAtOnce) {
  const NcclComm comm = make(1, "k");
  log();
  shim_.group_start();
  submit_exchange(shim_, comm);
  shim_.group_end();
  EXPECT_THAT(log(), ElementsAre("real start", "real send 0", "real recv 0", "real send 1",
                                 "real recv 1", "real end"));
}

TEST_F(ExchangeTest, WithThePromiseItIsAnAllToAll) {
  Shim shim(fake_real(), promise_, fake_core);
  NcclComm comm = nullptr;
  world->next_comm = handle(1);
  shim.create("k", 2, &comm, [&] { return fake_real().init_rank(&comm, 2, {}, 0); });
  log();
  shim.group_start();
  submit_exchange(shim, comm);
  shim.group_end();
  EXPECT_THAT(log(), UnorderedElementsAre("real start", "open k", "real end", "run all_to_all 4"));
  shim.group_start();
  submit_exchange(shim, comm, 5);
  shim.group_end();
  EXPECT_THAT(log(), ElementsAre("real start", "real send 0", "real recv 0", "real send 1",
                                 "real recv 1", "real end"));
  Call alone = call_on(comm, 8);
  alone.op = Op::kSend;
  shim.submit(alone);
  EXPECT_THAT(log(), ElementsAre("real send 0"));
}

// Two ranks of four send to each other in a group: nobody else comes to open anything.
TEST_F(ExchangeTest, WhatIsNoAllToAllWaitsForNobody) {
  Shim shim(fake_real(), promise_, fake_core);
  NcclComm comm = nullptr;
  world->next_comm = handle(1);
  world->num_ranks = 4;
  shim.create("k", 4, &comm, [&] { return fake_real().init_rank(&comm, 4, {}, 0); });
  log();
  shim.group_start();
  submit_exchange(shim, comm);
  shim.group_end();
  EXPECT_THAT(log(), ElementsAre("real start", "real send 0", "real recv 0", "real send 1",
                                 "real recv 1", "real end"));
}

/// With the settings that users have: a race decides.
class RaceOfShimTest : public ShimTest {
 protected:
  static constexpr uint32_t kAll = (1U << kNumRaced) - 1;
  static void answer(uint32_t won) { world->choice = {kAll, won}; }
  Shim raced_{fake_real(),
              [] {
                Settings settings;
                settings.chosen_by = ChosenBy::kRace;
                return settings;
              }(),
              fake_core};

  NcclComm make_raced(uintptr_t address, const std::string& key, int num_ranks = 2) {
    world->next_comm = handle(address);
    world->num_ranks = num_ranks;
    NcclComm comm = nullptr;
    raced_.create(key, num_ranks, &comm,
                  [&] { return fake_real().init_rank(&comm, num_ranks, {}, 0); });
    log();
    return comm;
  }
  static Call gather_on(NcclComm comm, size_t count) {
    Call call = call_on(comm, count);
    call.op = Op::kAllGather;
    return call;
  }
};

TEST_F(RaceOfShimTest, AnOperationIsRacedOnceAtItsFirstCall) {
  answer(kAll);
  const NcclComm comm = make_raced(1, "k");
  raced_.submit(call_on(comm, 8));
  raced_.submit(call_on(comm, 9));
  EXPECT_THAT(
      log(), ElementsAre("open k", "race all_reduce of k", "run all_reduce 8", "run all_reduce 9"));
  raced_.submit(gather_on(comm, 7));
  raced_.submit(call_on(comm, 6));
  EXPECT_THAT(log(), ElementsAre("race all_gather of k", "run all_gather 7", "run all_reduce 6"));
  const NcclComm other = make_raced(2, "other");
  raced_.submit(call_on(other, 5));
  EXPECT_THAT(log(), ElementsAre("open other", "race all_reduce of other", "run all_reduce 5"));
}

TEST_F(RaceOfShimTest, CallsGoToWhoWonThem) {
  answer(3);  // 8 and 32 KiB: 8,192 floats and fewer
  const NcclComm comm = make_raced(1, "k");
  raced_.submit(call_on(comm, 8192));
  raced_.submit(call_on(comm, 8193));
  raced_.submit(call_on(comm, 100));
  EXPECT_THAT(log(), ElementsAre("open k", "race all_reduce of k", "run all_reduce 8192",
                                 "real all_reduce 8193 on 1", "run all_reduce 100"));
}

TEST_F(RaceOfShimTest, LargeMessagesAreRacedWhenOneComes) {
  constexpr size_t kLarge = (8 << 20) / 4 + 1;  // floats
  answer(kAll);
  const NcclComm comm = make_raced(1, "k");
  raced_.submit(call_on(comm, kLarge));
  EXPECT_THAT(log(), ElementsAre("open k", "race all_reduce of k", "race large all_reduce of k",
                                 StartsWith("run all_reduce")));
  raced_.submit(call_on(comm, kLarge));
  EXPECT_THAT(log(), ElementsAre(StartsWith("run all_reduce")));
  raced_.submit(gather_on(comm, 8));
  EXPECT_THAT(log(), ElementsAre("race all_gather of k", "run all_gather 8"));
  world->is_capturing = true;
  raced_.submit(gather_on(comm, kLarge));
  EXPECT_THAT(log(), ElementsAre(StartsWith("real all_gather"))) << "there is no memory for it yet";
  world->is_capturing = false;
  answer(0x3f);
  raced_.submit(gather_on(comm, kLarge));
  EXPECT_THAT(log(), ElementsAre("race large all_gather of k", StartsWith("real all_gather")));
}

// Nobody measures, but large messages need memory.
TEST_F(ShimTest, RoomIsMadeForLargeMessagesWhenOneComes) {
  constexpr size_t kLarge = (8 << 20) / 4 + 1;  // floats
  world->choice = {0x1ff, 0x1ff};
  const NcclComm comm = make(1, "k");
  log();
  submit(call_on(comm, kLarge - 1));
  submit(call_on(comm, kLarge));
  submit(call_on(comm, kLarge));
  EXPECT_THAT(log(), ElementsAre("open k", StartsWith("run"), "room for large all_reduce of k",
                                 StartsWith("run"), StartsWith("run")));
  world->choice = {};  // no rank has enough
  Call gather = call_on(comm, kLarge);
  gather.op = Op::kAllGather;
  submit(gather);
  submit(gather);
  EXPECT_THAT(log(), ElementsAre("room for large all_gather of k", StartsWith("real all_gather"),
                                 StartsWith("real all_gather")));
}

TEST_F(RaceOfShimTest, WhatNobodyMeasuredIsNccls) {
  world->choice = {};
  const NcclComm comm = make_raced(1, "k");
  raced_.submit(call_on(comm, 8));
  raced_.submit(call_on(comm, 9));
  EXPECT_THAT(log(), ElementsAre("open k", "race all_reduce of k", "real all_reduce 8 on 1",
                                 "real all_reduce 9 on 1"));
}

TEST_F(RaceOfShimTest, ACaptureRacesNothing) {
  answer(kAll);
  const NcclComm comm = make_raced(1, "k");
  raced_.submit(call_on(comm, 8));
  log();
  world->is_capturing = true;
  raced_.submit(gather_on(comm, 7));
  raced_.submit(call_on(comm, 8));
  EXPECT_THAT(log(), ElementsAre("real all_gather 7", "run all_reduce 8")) << "it has been raced";
  world->is_capturing = false;
  raced_.submit(gather_on(comm, 7));
  EXPECT_THAT(log(), ElementsAre("race all_gather of k", "run all_gather 7"));
}

/// With windows at 10,000 to 20,000 and a call of 8 floats in them, or outside.
class WindowsOfShimTest : public RaceOfShimTest {
 protected:
  static constexpr uintptr_t kBase = 10'000, kBytes = 10'000;
  static void answer_there(uint32_t won) { world->choice_in_windows = {kAll, won}; }
  void* window_on(NcclComm comm) {
    void* window = nullptr;
    world_.next_window = handle(77);
    raced_.add_window(comm, handle(kBase), kBytes, &window, kSymmetric);
    log();
    return window;
  }
  static Call at(Call call, uintptr_t send, uintptr_t recv) {
    call.send = handle(send);
    call.recv = handle(recv);
    return call;
  }
  static Call with_op(Call call, Op op) {
    call.op = op;
    return call;
  }
};

TEST_F(WindowsOfShimTest, CallsInWindowsGoToWhoWonThere) {
  answer(kAll);
  answer_there(0);
  const NcclComm comm = make_raced(1, "k");
  window_on(comm);
  raced_.submit(at(call_on(comm, 8), kBase, kBase));
  raced_.submit(at(call_on(comm, 8), kBase, kBase));
  EXPECT_THAT(log(), ElementsAre("open k", "map 10000 of 10000", "race all_reduce in windows of k",
                                 "real all_reduce 8 on 1", "real all_reduce 8 on 1"));
  raced_.submit(at(call_on(comm, 9), 100, 100));
  raced_.submit(at(call_on(comm, 8), kBase, kBase));
  raced_.submit(at(call_on(comm, 9), 100, 100));
  EXPECT_THAT(log(), ElementsAre("race all_reduce of k", "run all_reduce 9",
                                 "real all_reduce 8 on 1", "run all_reduce 9"));
  answer(0);
  answer_there(kAll);
  raced_.submit(at(gather_on(comm, 7), kBase, kBase));
  raced_.submit(at(gather_on(comm, 7), kBase, 100));
  EXPECT_THAT(log(), ElementsAre("race all_gather in windows of k", "run all_gather 7",
                                 "race all_gather of k", "real all_gather 7"));
}

TEST_F(WindowsOfShimTest, LargeCallsInWindowsAreRacedWhenOneComes) {
  constexpr size_t kLarge = (8 << 20) / 4 + 1;  // floats
  answer(kAll);
  answer_there(0x3f);
  const NcclComm comm = make_raced(1, "k");
  void* window = nullptr;
  world_.next_window = handle(77);
  raced_.add_window(comm, handle(kBase), 4 * kLarge, &window, kSymmetric);
  log();
  raced_.submit(at(call_on(comm, kLarge), kBase, kBase));
  EXPECT_THAT(log(),
              ElementsAre("open k", StartsWith("map 10000"), "race all_reduce in windows of k",
                          "race large all_reduce in windows of k", StartsWith("real all_reduce")));
  raced_.submit(at(call_on(comm, kLarge), kBase + 4, kBase + 4));
  EXPECT_THAT(log(), ElementsAre("race all_reduce of k", "race large all_reduce of k",
                                 StartsWith("run all_reduce")))
      << "it reaches over the window's end";
}

// Blocks that others read, not results that land nowhere else.
TEST_F(WindowsOfShimTest, WhatOthersReachIntoIsWhatCounts) {
  answer(0);
  answer_there(kAll);
  const NcclComm comm = make_raced(1, "k");
  window_on(comm);
  const Call scatter = with_op(call_on(comm, 8), Op::kReduceScatter);
  raced_.submit(at(scatter, 100, kBase));
  raced_.submit(at(scatter, kBase, 100));
  raced_.submit(at(scatter, kBase + kBytes - 64, 100));
  raced_.submit(at(scatter, kBase + kBytes - 63, 100));
  EXPECT_THAT(log(),
              ElementsAre("open k", "map 10000 of 10000", "race reduce_scatter of k",
                          "real reduce_scatter 8", "race reduce_scatter in windows of k",
                          "run reduce_scatter 8", "run reduce_scatter 8", "real reduce_scatter 8"));
}

TEST_F(WindowsOfShimTest, AnAllToAllInPlaceIsNcclsThere) {
  answer(kAll);
  answer_there(kAll);
  const NcclComm comm = make_raced(1, "k");
  window_on(comm);
  const Call exchange = with_op(call_on(comm, 8), Op::kAllToAll);
  raced_.submit(at(exchange, kBase, kBase));
  EXPECT_THAT(raced_.reasons().json(), HasSubstr(R"("NCCL is as fast, or memory is missing": 1)"));
  raced_.submit(at(exchange, kBase, kBase + 64));
  raced_.submit(at(exchange, kBase, kBase));
  raced_.submit(at(exchange, 100, 100));
  EXPECT_THAT(log(), ElementsAre("open k", "map 10000 of 10000", "real all_to_all 8",
                                 "race all_to_all in windows of k", "run all_to_all 8",
                                 "real all_to_all 8", "race all_to_all of k", "run all_to_all 8"));
}

// Whether it lies in one that is mapped decides who has it: also a call that would be NCCL's elsewhere has
// it mapped. One that lies elsewhere waits for nobody.
TEST_F(WindowsOfShimTest, ANewWindowIsMappedBeforeACallInIt) {
  answer(0);
  answer_there(kAll);
  const NcclComm comm = make_raced(1, "k");
  raced_.submit(at(call_on(comm, 8), 100, 100));
  EXPECT_THAT(log(), ElementsAre("open k", "race all_reduce of k", "real all_reduce 8 on 1"));
  window_on(comm);
  raced_.submit(at(call_on(comm, 8), 100, 100));
  EXPECT_THAT(log(), ElementsAre("real all_reduce 8 on 1"));
  raced_.submit(at(call_on(comm, 8), kBase, kBase));
  EXPECT_THAT(log(), ElementsAre("map 10000 of 10000", "race all_reduce in windows of k",
                                 "run all_reduce 8"));
  // In a group, with calls that go to NCCL at once; the race is behind its end.
  void* window = nullptr;
  world_.next_window = handle(78);
  raced_.add_window(comm, handle(50'000), 64, &window, kSymmetric);
  log();
  raced_.group_start();
  raced_.submit(at(call_on(comm, 8), 100, 100));
  raced_.submit(at(gather_on(comm, 8), 100, 50'000));
  raced_.group_end();
  EXPECT_THAT(
      log(), ElementsAre("real start", "real all_reduce 8 on 1",
                         AnyOf("map 50000 of 64", "real end"), AnyOf("map 50000 of 64", "real end"),
                         "race all_gather in windows of k", "run all_gather 8"));
}

// It was given back, or NCCL had no use for it, on this rank: the others, who do not know, wait for it.
TEST_F(WindowsOfShimTest, ACallInANewWindowThatIsNoneComesToTheOthers) {
  answer(0);
  answer_there(kAll);
  const NcclComm comm = make_raced(1, "k");
  raced_.submit(at(call_on(comm, 8), 100, 100));
  log();
  void* window = nullptr;
  world_.next_window = nullptr;
  raced_.add_window(comm, handle(kBase), kBytes, &window, kSymmetric);
  world->map_code = 3;
  raced_.submit(at(call_on(comm, 8), kBase, kBase));
  EXPECT_THAT(log(), ElementsAre("real window", "map 0 of 10000", "real all_reduce 8 on 1"));
}

// NCCL's were seen not to end there.
TEST_F(WindowsOfShimTest, BroadcastsAreAsElsewhere) {
  answer(kAll);
  answer_there(0);
  const NcclComm comm = make_raced(1, "k");
  window_on(comm);
  raced_.submit(at(with_op(call_on(comm, 8), Op::kBroadcast), kBase, kBase));
  EXPECT_THAT(
      log(), ElementsAre("open k", "map 10000 of 10000", "race broadcast of k", "run broadcast 8"));
}

TEST_F(WindowsOfShimTest, AWindowOfAGroupIsKnownAtItsEnd) {
  answer(0);
  answer_there(kAll);
  const NcclComm comm = make_raced(1, "k");
  raced_.submit(at(call_on(comm, 8), 100, 100));
  log();
  void* window = nullptr;
  world_.next_window = handle(77);
  raced_.group_start();
  raced_.add_window(comm, handle(kBase), kBytes, &window, kSymmetric);
  raced_.submit(at(call_on(comm, 8), kBase, kBase));
  raced_.group_end();
  EXPECT_THAT(log(), ElementsAre("real start", "real window", "real end", "map 10000 of 10000",
                                 "race all_reduce in windows of k", "run all_reduce 8"));
}

TEST_F(WindowsOfShimTest, ACaptureMapsForACallOfOursAndRacesNothing) {
  answer(kAll);
  answer_there(kAll);
  const NcclComm comm = make_raced(1, "k");
  raced_.submit(at(call_on(comm, 8), 100, 100));
  window_on(comm);
  world->is_capturing = true;
  raced_.submit(at(gather_on(comm, 8), 100, kBase));
  EXPECT_THAT(log(), ElementsAre("real all_gather 8")) << "of which nothing is known";
  raced_.submit(at(call_on(comm, 8), kBase, kBase));
  raced_.submit(at(call_on(comm, 9), 100, 100));
  EXPECT_THAT(log(),
              ElementsAre("map 10000 of 10000", "real all_reduce 8 on 1", "run all_reduce 9"));
  world->is_capturing = false;
  raced_.submit(at(call_on(comm, 8), kBase, kBase));
  world->is_capturing = true;
  raced_.submit(at(call_on(comm, 8), kBase, kBase));
  EXPECT_THAT(log(), ElementsAre("race all_reduce in windows of k", "run all_reduce 8",
                                 "run all_reduce 8"));
  // The same in a group.
  window_on(comm);
  raced_.group_start();
  raced_.submit(at(call_on(comm, 9), 100, 100));
  raced_.group_end();
  EXPECT_THAT(log(), ElementsAre("real start", AnyOf("map 10000 of 10000", "real end"),
                                 AnyOf("map 10000 of 10000", "real end"), "run all_reduce 9"));
}

// As it was before: results land where they do elsewhere, and that is what was raced.
TEST_F(WindowsOfShimTest, AWindowThatIsGoneOrCannotBeMappedIsNone) {
  answer(kAll);
  answer_there(0);
  const NcclComm comm = make_raced(1, "k");
  void* const window = window_on(comm);
  raced_.submit(at(call_on(comm, 8), kBase, kBase));
  log();
  raced_.drop_window(comm, window);
  raced_.submit(at(call_on(comm, 8), kBase, kBase));
  EXPECT_THAT(log(), ElementsAre("unmap 10000", "real no window 77", "race all_reduce of k",
                                 "run all_reduce 8"));
  world->map_code = 3;
  window_on(comm);
  raced_.submit(at(call_on(comm, 8), kBase, kBase));
  EXPECT_THAT(log(), ElementsAre("map 10000 of 10000", "run all_reduce 8"));
}

TEST_F(WindowsOfShimTest, TheRacesWindowsAreNcclsAlone) {
  answer(kAll);
  answer_there(kAll);
  const NcclComm comm = make_raced(4, "k");
  window_on(comm);
  world->on_race = [](const braid_nccl_real& real) {
    void* memory = nullptr;
    EXPECT_EQ(real.take_memory(real.context, 64, &memory), 0);
    EXPECT_EQ(memory, handle(4000));
    world->next_window = handle(99);
    void* window = nullptr;
    EXPECT_EQ(real.open_window(real.context, memory, 64, &window), 0);
    EXPECT_EQ(window, handle(99));
    world->answers["window"] = NcclResult::kInvalidUsage;
    EXPECT_EQ(real.open_window(real.context, memory, 64, &window), 5);
    EXPECT_EQ(window, nullptr);
    world->answers.clear();
    world->next_window = nullptr;
    EXPECT_EQ(real.open_window(real.context, memory, 64, &window), 0);
    EXPECT_EQ(window, nullptr);
    EXPECT_EQ(real.close_window(real.context, handle(99)), 0);
    EXPECT_EQ(real.give_memory_back(real.context, memory), 0);
  };
  raced_.submit(at(call_on(comm, 8), kBase, kBase));
  EXPECT_THAT(log(), ElementsAre("open k", "map 10000 of 10000", "race all_reduce in windows of k",
                                 "real take 64", "real window", "real window", "real window",
                                 "real no window 99", "real give back 4000", "run all_reduce 8"));
}

// Libraries that work in the background write the handle when they are through.
TEST_F(WindowsOfShimTest, AWindowInTheBackgroundIsWaitedFor) {
  answer_there(kAll);
  const NcclComm comm = make_raced(4, "k");
  window_on(comm);
  world->on_race = [](const braid_nccl_real& real) {
    world->async = NcclResult::kInProgress;
    int num_asked = 0;
    world->on_ask = [&] {
      if (++num_asked == 3) world->async = NcclResult::kRemoteError;
    };
    void* window = nullptr;
    EXPECT_EQ(real.open_window(real.context, handle(1), 64, &window), 6);
    EXPECT_EQ(num_asked, 3);
    world->async = NcclResult::kSuccess;
    world->on_ask = nullptr;
  };
  raced_.submit(at(call_on(comm, 8), kBase, kBase));
}

TEST_F(RaceOfShimTest, TheRacesOwnCallsAreNcclsAlone) {
  answer(kAll);
  const NcclComm comm = make_raced(4, "k");
  world->on_race = [](const braid_nccl_real& real) {
    braid_nccl_call call{};
    call.op = BRAID_NCCL_ALL_REDUCE;
    call.count = 77;
    EXPECT_EQ(real.run(real.context, &call), 0);
    world->answers["all_reduce"] = NcclResult::kInvalidUsage;
    EXPECT_EQ(real.run(real.context, &call), 5);
    world->answers.clear();
    EXPECT_EQ(real.version, 22809);
  };
  raced_.submit(call_on(comm, 8));
  EXPECT_THAT(log(), ElementsAre("open k", "race all_reduce of k", "real all_reduce 77 on 4",
                                 "real all_reduce 77 on 4", "run all_reduce 8"));
  EXPECT_EQ(raced_.counts().handed_on[0], 0U) << "they are not the program's";
}

// Communicators that do not block answer that a call is being made.
TEST_F(RaceOfShimTest, ACallInTheBackgroundIsWaitedFor) {
  answer(kAll);
  const NcclComm comm = make_raced(4, "k");
  world->on_race = [](const braid_nccl_real& real) {
    world->answers["all_reduce"] = NcclResult::kInProgress;
    braid_nccl_call call{};
    EXPECT_EQ(real.run(real.context, &call), 0);
    world->answers.clear();
  };
  EXPECT_EQ(raced_.submit(call_on(comm, 8)), NcclResult::kSuccess);
}

// What was raced under one configuration says nothing of another; children have their parent's.
TEST_F(RaceOfShimTest, TheRaceKnowsTheConfiguration) {
  answer(kAll);
  std::vector<uint64_t> configs;
  world->on_race = [&](const braid_nccl_real& real) { configs.push_back(real.config); };
  world->next_comm = handle(5);
  NcclComm comm = nullptr, child = nullptr;
  raced_.create("k", 2, &comm, [&] { return fake_real().init_rank(&comm, 2, {}, 0); }, 77);
  raced_.submit(call_on(comm, 8));
  world->next_comm = handle(6);
  raced_.split(comm, 0, 0, &child, nullptr);
  raced_.submit(call_on(child, 8));
  EXPECT_THAT(configs, ElementsAre(77U, 77U));
}

TEST_F(RaceOfShimTest, ARaceThatFailsLeavesTheCommunicatorToNccl) {
  world->race_code = 3;
  const NcclComm comm = make_raced(1, "k");
  raced_.submit(call_on(comm, 8));
  raced_.submit(gather_on(comm, 7));
  EXPECT_THAT(log(), ElementsAre("open k", "race all_reduce of k", "real all_reduce 8 on 1",
                                 "real all_gather 7"));
}

// What is under way of ours is lost with the seat: an error, and no silent change of sides.
TEST_F(RaceOfShimTest, ARaceThatFailsLaterIsAnError) {
  answer(kAll);
  const NcclComm comm = make_raced(1, "k");
  raced_.submit(call_on(comm, 8));
  log();
  world->race_code = 6;
  world->run_code = 6;  // as the seat answers from then on
  EXPECT_EQ(raced_.submit(gather_on(comm, 7)), NcclResult::kRemoteError);
  EXPECT_THAT(log(), ElementsAre("race all_gather of k", "run all_gather 7"));
  EXPECT_STREQ(raced_.get_last_error(comm), "code 6");
}

TEST_F(RaceOfShimTest, AnAbortInARaceIsNotHandedOn) {
  const NcclComm comm = make_raced(1, "k");
  world->race_code = 3;
  world->on_race = [&](const braid_nccl_real&) { raced_.abort(comm); };
  EXPECT_EQ(raced_.submit(call_on(comm, 8)), NcclResult::kRemoteError);
  EXPECT_THAT(log(), Not(Contains("real all_reduce 8 on 1")));
}

// It asked for up to a minute, where a call is made in the background: of freed memory, when a
// watchdog had aborted the communicator meanwhile.
TEST_F(RaceOfShimTest, AnAbortEndsTheRacesQuestions) {
  for (const bool in_the_race : {false, true}) {
    const NcclComm comm = make_raced(1, "k");
    std::latch is_asking(1);
    std::atomic<bool> is_given_up{false};
    int num_asked = 0, num_late = 0;  // by the race's thread
    const auto begin = [&] {
      world->async = NcclResult::kInProgress;
      world->on_ask = [&] {
        if (++num_asked == 1) is_asking.count_down();
        if (is_given_up && ++num_late == 3) world->async = NcclResult::kSuccess;
      };
    };
    world->race_code = 3;
    world->answers["all_reduce"] = NcclResult::kInProgress;
    world->on_interrupt = [&] { is_given_up = true; };
    if (!in_the_race) world->on_open = begin;
    world->on_race = [&](const braid_nccl_real& real) {
      if (!in_the_race) return;
      begin();
      const braid_nccl_call call{};
      EXPECT_EQ(real.run(real.context, &call), static_cast<int>(NcclResult::kRemoteError));
    };
    std::thread watchdog([&] {
      is_asking.wait();
      raced_.abort(comm);
    });
    EXPECT_EQ(raced_.submit(call_on(comm, 8)), NcclResult::kRemoteError);
    watchdog.join();
    EXPECT_EQ(num_late, 0);
    world->on_ask = world->on_open = world->on_interrupt = nullptr;
    world->on_race = nullptr;
    world->async = NcclResult::kSuccess;
    world->answers.clear();
  }
}

TEST_F(RaceOfShimTest, InAGroupTheRaceIsBehindTheRealEnd) {
  answer(1);  // 8 KiB and less
  const NcclComm comm = make_raced(1, "k");
  raced_.group_start();
  raced_.submit(call_on(comm, 8));
  raced_.submit(odd_call_on(comm, 5));
  raced_.submit(call_on(comm, 9000));
  raced_.submit(gather_on(comm, 7));
  EXPECT_EQ(raced_.group_end(), NcclResult::kSuccess);
  std::vector<std::string> lines = log();
  // It is set up on a thread beside.
  lines.erase(std::find(lines.begin(), lines.end(), "open k"));
  EXPECT_THAT(
      lines, ElementsAre("real start", "real all_reduce 5 on 1", "real end", "race all_reduce of k",
                         "race all_gather of k", "real start", "real all_reduce 9000 on 1",
                         "real end", "run all_reduce 8", "run all_gather 7"));
}

TEST_F(RaceOfShimTest, InAGroupWhatIsKnownToBeNcclsGoesThereAtOnce) {
  answer(1);
  const NcclComm comm = make_raced(1, "k");
  raced_.submit(call_on(comm, 8));
  log();
  raced_.group_start();
  raced_.submit(call_on(comm, 9000));
  raced_.submit(call_on(comm, 8));
  raced_.group_end();
  EXPECT_THAT(log(), ElementsAre("real start", "real all_reduce 9000 on 1", "real end",
                                 "run all_reduce 8"));
}

TEST_F(ShimTest, WhereNcclSumsInSwitchesItKeepsSumsThatNobodyMeasured) {
  world->open_answer = BRAID_NCCL_TAKEN | BRAID_NCCL_HAS_SHARP;
  const NcclComm comm = make(1, "k");
  log();
  submit(call_on(comm, 8));
  Call gather = call_on(comm, 7);
  gather.op = Op::kAllGather;
  submit(gather);
  submit(call_on(comm, 9));
  EXPECT_THAT(log(), ElementsAre("open k", "real all_reduce 8 on 1", "run all_gather 7",
                                 "real all_reduce 9 on 1"));
}

// NCCL before 2.28 has no ncclAlltoAll.
TEST_F(ExchangeTest, AnAllToAllThatNcclHasNotIsSendsAndReceives) {
  Real real = fake_real();
  real.lacks_all_to_all = true;
  Settings settings;
  settings.chosen_by = ChosenBy::kRace;
  settings.is_grouped_exchange = true;
  Shim shim(real, settings, fake_core);
  world->next_comm = handle(3);
  world->num_ranks = 2;
  NcclComm comm = nullptr;
  shim.create("e", 2, &comm, [&] { return fake_real().init_rank(&comm, 2, {}, 0); });
  log();
  world->choice = {0x1ff, 0};  // NCCL wins
  char send[16], recv[16];
  shim.group_start();
  for (int peer = 0; peer < 2; ++peer) {
    Call call = call_on(comm, 2);
    call.root = peer;
    call.op = Op::kSend;
    call.send = send + 8 * peer;
    shim.submit(call);
    call.op = Op::kRecv;
    call.recv = recv + 8 * peer;
    shim.submit(call);
  }
  EXPECT_EQ(shim.group_end(), NcclResult::kSuccess);
  EXPECT_THAT(log(), testing::IsSupersetOf({"race all_to_all of e", "real send 0", "real recv 0",
                                            "real send 1", "real recv 1"}));
}

}  // namespace
}  // namespace braid::nccl
