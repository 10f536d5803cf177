// What the shim makes of communicators over several nodes: a real library and a core that write down
// what they are asked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "bindings/nccl/choice.h"
#include "bindings/nccl/shim.h"

namespace braid::nccl::nodes_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct World {
  std::mutex mutex;  // of the log: real groups end on threads of their own
  std::vector<std::string> log;
  int opens = BRAID_NCCL_TAKEN | BRAID_NCCL_OVER_NODES;
  int race_code = 0, run_code = 0;
  bool has_mark = true;
  std::string why_not;  // open() says
};
World* world;

void* handle(uintptr_t value) { return reinterpret_cast<void*>(value); }
NcclResult note(const std::string& line) {
  const std::lock_guard lock(world->mutex);
  world->log.push_back(line);
  return NcclResult::kSuccess;
}

Real real_that_notes() {
  Real real{};
  real.version = [](int* version) { return *version = 22809, NcclResult::kSuccess; };
  real.unique_id = [](UniqueId* id) {
    std::memset(id->bytes, 0, sizeof id->bytes);
    return note("id");
  };
  real.init_rank_config = [](NcclComm* comm, int num_ranks, UniqueId id, int rank, void* config) {
    *comm = handle(50);
    int blocks = 0;
    std::memcpy(&blocks, static_cast<char*>(config) + 28, sizeof blocks);
    return note("rail " + std::to_string(rank) + " of " + std::to_string(num_ranks) + " by " +
                id.bytes + " with " + std::to_string(blocks));
  };
  real.get_async_error = [](NcclComm, NcclResult* error) {
    *error = NcclResult::kSuccess;
    return NcclResult::kSuccess;
  };
  real.count = [](NcclComm, int* count) { return *count = 4, NcclResult::kSuccess; };
  real.user_rank =
      real.device = [](NcclComm, int* rank) { return *rank = 0, NcclResult::kSuccess; };
  real.group_start = [] { return note("start"); };
  real.group_end = [] { return note("end"); };
  real.all_reduce = [](const void*, void*, size_t, int, int, NcclComm, CudaStream) {
    return note("real all_reduce");
  };
  real.all_gather = [](const void*, void*, size_t count, int dtype, NcclComm comm, CudaStream) {
    return note("real all_gather " + std::to_string(count) + " of " + std::to_string(dtype) +
                (comm == handle(50) ? " on the rail" : ""));
  };
  real.reduce_scatter = [](const void*, void*, size_t, int, int, NcclComm, CudaStream) {
    return note("real reduce_scatter");
  };
  real.send = [](const void*, size_t count, int, int peer, NcclComm, CudaStream) {
    return note("send " + std::to_string(count) + " to " + std::to_string(peer));
  };
  real.recv = [](void*, size_t count, int, int peer, NcclComm, CudaStream) {
    return note("recv " + std::to_string(count) + " from " + std::to_string(peer));
  };
  real.abort = [](NcclComm) { return note("abort"); };
  real.destroy = [](NcclComm) { return note("destroy"); };
  real.get_last_error = [](NcclComm) { return "real's words"; };
  return real;
}

int tell(int code, braid_nccl_why why) {
  if (code != 0) std::snprintf(why.text, why.bytes, "code %d", code);
  return code;
}

const braid_nccl_core* core_that_notes() {
  static const braid_nccl_core core{
      BRAID_NCCL_CORE_VERSION,
      [](char* id, braid_nccl_why why) {
        id[127] = 'm';
        return tell(world->has_mark ? 0 : 2, why);
      },
      [](const void*, size_t, uint64_t, braid_nccl_why) {
        return static_cast<braid_nccl_seat*>(handle(1000));
      },
      [](braid_nccl_seat*) {},
      [](braid_nccl_seat*, const braid_nccl_place* place, braid_nccl_why why) {
        note("open at " + std::to_string(place->op));
        const bool is_later =
            world->opens == BRAID_NCCL_LATER &&
            (place->op == BRAID_NCCL_ALL_GATHER || place->op == BRAID_NCCL_REDUCE_SCATTER);
        if (world->opens == BRAID_NCCL_LOST) tell(7, why);
        if (!world->why_not.empty())
          std::snprintf(why.text, why.bytes, "%s", world->why_not.c_str());
        return is_later ? BRAID_NCCL_TAKEN | BRAID_NCCL_OVER_NODES : world->opens;
      },
      [](braid_nccl_seat*, int op, int is_large, int, const braid_nccl_real* real,
         braid_nccl_choice* choice, braid_nccl_why why) {
        note("race " + std::to_string(op) + (is_large != 0 ? " large" : "") +
             (real != nullptr ? " with NCCL" : ""));
        *choice = {kAllRaced, kAllRaced};
        return tell(world->race_code, why);
      },
      [](braid_nccl_seat*, const braid_nccl_call* call, braid_nccl_why why) {
        note("run " + std::to_string(call->op));
        return tell(world->run_code, why);
      },
      [](braid_nccl_seat*, void*, uint64_t, braid_nccl_why) { return 0; },
      [](braid_nccl_seat*, void*, braid_nccl_why) { return 0; },
      [](braid_nccl_seat*, void* const*, size_t, braid_nccl_why) { return 0; },
      [](int, void*) { return 0; },
      [](braid_nccl_seat*, braid_nccl_why why) {
        return tell(world->opens == BRAID_NCCL_LOST ? 7 : 0, why);
      },
      [](braid_nccl_seat*) {},
      [](braid_nccl_seat*, int) {},
      [](braid_nccl_seat*) {}};
  return &core;
}

class ShimOverNodes : public testing::Test {
 protected:
  explicit ShimOverNodes(Nodes nodes = Nodes::kAuto, ChosenBy by = ChosenBy::kRace) {
    world = &world_;
    Settings settings;
    settings.nodes = nodes;
    settings.chosen_by = by;
    shim_ = std::make_unique<Shim>(real_that_notes(), settings, core_that_notes);
    NcclComm comm = nullptr;
    (void)shim_->create("k", 4, &comm, [&] {
      comm = handle(1);
      return NcclResult::kSuccess;
    });
  }
  NcclResult call(Op op, size_t count = 8, int redop = 0) {
    Call call;
    call.op = op;
    call.comm = handle(1);
    call.count = count;
    call.dtype = 7;
    call.redop = redop;
    return shim_->submit(call);
  }
  std::vector<std::string> log() { return std::exchange(world_.log, {}); }

  World world_;
  std::unique_ptr<Shim> shim_;
};
class ShimOverNodesOn : public ShimOverNodes {
 protected:
  ShimOverNodesOn() : ShimOverNodes(Nodes::kOn) {}
};
class ShimOverNodesUnraced : public ShimOverNodes {
 protected:
  ShimOverNodesUnraced() : ShimOverNodes(Nodes::kAuto, ChosenBy::kLimits) {}
};

TEST_F(ShimOverNodes, GathersAndScatteredSumsAloneAreTakenOver) {
  EXPECT_EQ(call(Op::kAllGather), NcclResult::kSuccess);
  EXPECT_THAT(log(), ElementsAre("open at 1", "race 1 with NCCL", "run 1"));
  call(Op::kReduceScatter);
  call(Op::kAllReduce);
  call(Op::kReduceScatter, 8, 4);
  EXPECT_THAT(log(), ElementsAre("race 2 with NCCL", "run 2", "real all_reduce", "run 2"));
}

// A program that only sums is not set up for what it never calls.
TEST_F(ShimOverNodes, NothingIsDecidedBeforeACallThatMayBeTakenOver) {
  world->opens = BRAID_NCCL_LATER;
  call(Op::kAllReduce);
  call(Op::kAllReduce);
  EXPECT_THAT(log(), ElementsAre("open at 0", "real all_reduce", "real all_reduce"));
  call(Op::kAllGather);
  EXPECT_THAT(log(), ElementsAre("open at 1", "race 1 with NCCL", "run 1"));
}

TEST_F(ShimOverNodes, InAGroupTheCallThatDecidesIsFound) {
  world->opens = BRAID_NCCL_LATER;
  shim_->group_start();
  call(Op::kAllReduce);
  call(Op::kAllGather);
  EXPECT_EQ(shim_->group_end(), NcclResult::kSuccess);
  const auto lines = log();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "open at 1"), 1);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "run 1"), 1);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "real all_reduce"), 1);
}

// The others may have taken it over: nobody guesses. What no rank takes over goes on.
TEST_F(ShimOverNodes, AVerdictThatWasLostIsAnErrorOfTheCallsInQuestion) {
  world->opens = BRAID_NCCL_LOST;
  world->run_code = 7;
  EXPECT_EQ(call(Op::kAllGather), NcclResult::kRemoteError);
  EXPECT_EQ(call(Op::kReduceScatter), NcclResult::kRemoteError);
  EXPECT_EQ(call(Op::kAllReduce), NcclResult::kSuccess);
  EXPECT_THAT(log(), ElementsAre("open at 1", "run 1", "run 2", "real all_reduce"));
  NcclResult error = NcclResult::kSuccess;
  EXPECT_EQ(shim_->get_async_error(handle(1), &error), NcclResult::kSuccess);
  EXPECT_EQ(error, NcclResult::kRemoteError);
}

TEST_F(ShimOverNodes, ARaceThatIsLostIsAnErrorToo) {
  world->race_code = world->run_code = 7;
  EXPECT_EQ(call(Op::kAllGather), NcclResult::kRemoteError) << "some ranks may have taken it over";
}

TEST_F(ShimOverNodesOn, OnAsksNobody) {
  call(Op::kAllGather);
  EXPECT_THAT(log(), ElementsAre("open at 1", "race 1", "run 1"));
}

TEST_F(ShimOverNodesUnraced, AutoWithoutARaceTakesNothing) {
  call(Op::kAllGather);
  EXPECT_THAT(log(), ElementsAre("open at 1", "race 1", "real all_gather 8 of 7"));
}

// braid.stats() tells why each call that NCCL has is NCCL's.
TEST_F(ShimOverNodes, ReasonsAreCounted) {
  call(Op::kAllGather);
  call(Op::kAllReduce);
  call(Op::kReduceScatter, 8, 7);  // an operator of the program's
  call(Op::kSend);
  const std::string json = shim_->reasons().json();
  EXPECT_THAT(json, HasSubstr(R"("taken": 1, "taken_over_nodes": 1, "left": {})"));
  EXPECT_THAT(json,
              HasSubstr(R"("over several nodes all_gather and reduce_scatter alone are taken )"
                        R"(over": 1)"));
  EXPECT_THAT(json, HasSubstr(R"("a reduction that the program made": 1)"));
  EXPECT_THAT(json, HasSubstr(R"("a send or receive": 1)"));
}

TEST_F(ShimOverNodesUnraced, ReasonsOfCommunicatorsAndRaces) {
  call(Op::kAllGather);
  EXPECT_THAT(shim_->reasons().json(), HasSubstr(R"("NCCL is as fast, or memory is missing": 1)"));
  Call unseen;
  unseen.op = Op::kAllGather;
  unseen.comm = handle(77);
  (void)shim_->submit(unseen);
  EXPECT_THAT(shim_->reasons().json(), HasSubstr(R"(out of braid's sight": 1)"));
}

TEST_F(ShimOverNodes, ReasonsOfACommunicatorThatIsLeft) {
  world->opens = 0;
  world->why_not = "ranks have different \"settings\"";
  call(Op::kAllGather);
  call(Op::kAllGather);
  const std::string json = shim_->reasons().json();
  EXPECT_THAT(json, HasSubstr(R"("left": {"ranks have different \"settings\"": 1})"));
  EXPECT_THAT(json, HasSubstr(R"("its communicator is NCCL's, or still being made": 2)"));
}

TEST_F(ShimOverNodes, IdsAreMarked) {
  UniqueId id;
  EXPECT_EQ(shim_->make_id(&id), NcclResult::kSuccess);
  EXPECT_EQ(id.bytes[127], 'm');
  shim_->sign_for_more(false);
  EXPECT_EQ(shim_->make_id(&id), NcclResult::kSuccess);
  EXPECT_EQ(id.bytes[127], 0);
}

}  // namespace
}  // namespace braid::nccl::nodes_test
