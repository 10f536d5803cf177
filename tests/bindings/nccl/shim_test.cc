// What the shim decides and in which order things happen: a real library and a core that only write
// down what they are asked.
#include "bindings/nccl/shim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace braid::nccl {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Function tables have no place for `this`.
struct World {
  std::vector<std::string> log;
  std::map<std::string, NcclResult> answers;  // of the real library, by name
  NcclResult async = NcclResult::kSuccess;
  int num_ranks = 2;
  NcclComm next_comm = nullptr;

  bool may_sign = true, may_open = true, is_capturing = false;
  int run_code = 0, status_code = 0;
  std::map<braid_nccl_seat*, std::string> keys;
  int num_seats = 0;

  NcclResult note(const std::string& name, const std::string& rest = "") {
    log.push_back("real " + name + rest);
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
  real.init_rank = [](NcclComm* comm, int, UniqueId, int) { return made("init", comm); };
  real.split = [](NcclComm, int, int, NcclComm* child, void*) { return made("split", child); };
  real.shrink = [](NcclComm, int*, int, NcclComm* child, void*, int) {
    return made("shrink", child);
  };
  real.finalize = [](NcclComm) { return world->note("finalize"); };
  real.destroy = [](NcclComm) { return world->note("destroy"); };
  real.abort = [](NcclComm) { return world->note("abort"); };
  real.revoke = [](NcclComm, int) { return world->note("revoke"); };
  real.get_async_error = [](NcclComm, NcclResult* error) {
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
      [](const void* key, size_t bytes, braid_nccl_why why) -> braid_nccl_seat* {
        if (!world->may_sign) return tell(3, why), nullptr;
        auto* seat = static_cast<braid_nccl_seat*>(
            handle(1000 + static_cast<uintptr_t>(world->num_seats++)));
        world->keys[seat] = std::string(static_cast<const char*>(key), bytes);
        world->log.push_back("sign");
        return seat;
      },
      [](braid_nccl_seat*) { world->log.push_back("seal"); },
      [](braid_nccl_seat* seat, int, int, int, braid_nccl_why why) {
        world->log.push_back("open " + world->keys[seat]);
        tell(world->may_open ? 0 : 3, why);
        return world->may_open ? 1 : 0;
      },
      [](braid_nccl_seat*, const braid_nccl_call* call, braid_nccl_why why) {
        world->log.push_back("run " + std::string(op_name(static_cast<Op>(call->op))) + " " +
                             std::to_string(call->count));
        return tell(world->run_code, why);
      },
      [](braid_nccl_seat*, void* const*, size_t num_streams, braid_nccl_why) {
        world->log.push_back("join " + std::to_string(num_streams));
        return 0;
      },
      [](void*) { return world->is_capturing ? 1 : 0; },
      [](braid_nccl_seat*, braid_nccl_why why) { return tell(world->status_code, why); },
      [](braid_nccl_seat*, int in_peace) {
        world->log.push_back(in_peace != 0 ? "close" : "break off");
      },
      [](braid_nccl_seat*) { world->log.push_back("release"); }};
  return &core;
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
  EXPECT_THAT(log(), ElementsAre("break off", "sign", "real shrink", "seal"));
  submit(call_on(small, 8));
  EXPECT_THAT(log(), ElementsAre("open k/shrink:1,3,", "run all_reduce 8"));
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
  EXPECT_THAT(log(), ElementsAre("open k", "run all_reduce 8", "run all_reduce 10", "real end"));
}

TEST_F(ShimTest, AGroupThatBeginsWithNcclsCallEndsItFirst) {
  const NcclComm comm = make(1, "k");
  log();
  shim_.group_start();
  submit(odd_call_on(comm, 9));
  submit(call_on(comm, 8));
  shim_.group_end();
  EXPECT_THAT(log(), ElementsAre("real start", "real all_reduce 9 on 1", "open k", "real end",
                                 "run all_reduce 8"));
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
  EXPECT_THAT(log(), ElementsAre("real start", "real all_reduce 9 on 2", "open a",
                                 "run all_reduce 8", "real end"));
}

TEST_F(ShimTest, CommunicatorsOfAGroupOpenInAnOrderThatAllRanksShare) {
  const NcclComm z = make(1, "z"), a = make(2, "a");
  log();
  shim_.group_start();
  submit(call_on(z, 8));
  submit(call_on(a, 9));
  submit(call_on(z, 10));
  shim_.group_end();
  EXPECT_THAT(log(), ElementsAre("real start", "open a", "open z", "run all_reduce 8",
                                 "run all_reduce 9", "run all_reduce 10", "real end"));
}

TEST_F(ShimTest, WhatDoesNotOpenGoesIntoTheRealGroup) {
  const NcclComm comm = make(1, "k");
  log();
  world->may_open = false;
  shim_.group_start();
  submit(call_on(comm, 8));
  shim_.group_end();
  EXPECT_THAT(log(), ElementsAre("real start", "open k", "real all_reduce 8 on 1", "real end"));
}

TEST_F(ShimTest, StreamsOfAGroupWaitForEachOther) {
  const NcclComm comm = make(1, "k");
  log();
  shim_.group_start();
  submit(call_on(comm, 8, 1));
  submit(call_on(comm, 9, 2));
  shim_.group_end();
  EXPECT_THAT(log(), ElementsAre("real start", "open k", "join 2", "run all_reduce 8",
                                 "run all_reduce 9", "real end", "join 2"));
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
  EXPECT_THAT(log(), ElementsAre("break off", "release", "real abort"));
  shim_.finalize(b);
  EXPECT_THAT(log(), ElementsAre("close", "real finalize"));
  submit(call_on(b, 8));
  EXPECT_THAT(log(), ElementsAre("real all_reduce 8 on 2")) << "an error that NCCL tells";
  shim_.revoke(c, 0);
  EXPECT_THAT(log(), ElementsAre("break off", "real revoke"));
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
  EXPECT_THAT(log(), ElementsAre("real start", "open k", "run all_to_all 4", "real end"));
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

}  // namespace
}  // namespace braid::nccl
