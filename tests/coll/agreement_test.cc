// What ranks must agree on: a disagreement is an error on every rank, at once, and touches no
// memory.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "coll/all_gather/all_gather.h"
#include "coll/all_reduce/all_reduce.h"
#include "coll/all_to_all/all_to_all.h"
#include "coll/broadcast/broadcast.h"
#include "coll/gather/gather.h"
#include "coll/ranks.h"
#include "coll/reduce_scatter/reduce_scatter.h"
#include "coll/rooted_reduce/rooted_reduce.h"
#include "coll/scatter/scatter.h"

namespace braid {
namespace {

using test::run_comms;

constexpr uint64_t kCount = 50'000;

bool untouched(const std::vector<float>& v) {
  for (float x : v)
    if (x != -1.0F) return false;
  return true;
}

// Every rank runs `call`, which disagrees somewhere; all get invalid_argument in well under the
// deadline, recv is untouched, and the comm still works.
void expect_mismatch(const std::function<Status(comm::Comm&, const float*, float*)>& call,
                     const std::string& words) {
  run_comms(4, {{"BRAID_LINKS", "shm,staged"}}, [&](comm::Comm& comm) {
    std::vector<float> send(4 * kCount, 2.0F);
    std::vector<float> recv(4 * kCount, -1.0F);
    const int64_t start_ns = now_ns();
    const Status status = call(comm, send.data(), recv.data());
    EXPECT_EQ(status.code(), Code::kInvalidArgument)
        << "rank " << comm.rank() << ": " << status.to_string();
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    EXPECT_LT(now_ns() - start_ns, 5_s);
    EXPECT_TRUE(untouched(recv)) << "rank " << comm.rank();
    ASSERT_TRUE(
        coll::all_reduce(comm, send.data(), recv.data(), kCount, Dtype::kFloat32, RedOp::kSum)
            .ok());
    EXPECT_EQ(recv[kCount - 1], 8.0F);
  });
}

TEST(Agreement, CountsDiffer) {
  expect_mismatch(
      [](comm::Comm& comm, const float* send, float* recv) {
        return coll::all_reduce(comm, send, recv, comm.rank() == 2 ? kCount - 1 : kCount,
                                Dtype::kFloat32, RedOp::kSum);
      },
      "all_reduce of 49999 float32");
}

TEST(Agreement, DtypesDiffer) {
  expect_mismatch(
      [](comm::Comm& comm, const float* send, float* recv) {
        return coll::all_gather(comm, send, recv, kCount,
                                comm.rank() == 0 ? Dtype::kInt32 : Dtype::kFloat32);
      },
      "int32");
}

TEST(Agreement, ReductionsDiffer) {
  expect_mismatch(
      [](comm::Comm& comm, const float* send, float* recv) {
        return coll::reduce_scatter(comm, send, recv, kCount, Dtype::kFloat32,
                                    comm.rank() == 3 ? RedOp::kMax : RedOp::kSum);
      },
      "max");
}

TEST(Agreement, BitwiseOperatorsDiffer) {
  const auto call = [](comm::Comm& comm, const float* send, float* recv) {
    return coll::all_to_all(comm, send, recv, kCount, Dtype::kInt32,
                            comm.rank() == 1 ? coll::BitOp::kBor : coll::BitOp::kBand);
  };
  expect_mismatch(call, "all_to_all of 50000 int32, band");
  expect_mismatch(call, "all_to_all of 50000 int32, bor");
}

TEST(Agreement, RootsDiffer) {
  expect_mismatch(
      [](comm::Comm& comm, const float*, float* recv) {
        return coll::broadcast(comm, recv, kCount, Dtype::kFloat32, comm.rank() % 2);
      },
      "root");
}

TEST(Agreement, OperationsDiffer) {
  expect_mismatch(
      [](comm::Comm& comm, const float* send, float* recv) {
        if (comm.rank() == 1) return coll::barrier(comm);
        return coll::all_to_all(comm, send, recv, kCount, Dtype::kFloat32);
      },
      "barrier");
}

TEST(Agreement, EmptyAgainstFull) {
  expect_mismatch(
      [](comm::Comm& comm, const float* send, float* recv) {
        return coll::all_gather(comm, send, recv, comm.rank() == 1 ? 0 : kCount, Dtype::kFloat32);
      },
      "all_gather of 0 float32");
}

TEST(Agreement, UnevenCountsDoNotMatch) {
  expect_mismatch(
      [](comm::Comm& comm, const float* send, float* recv) {
        std::vector<uint64_t> sends(4, 100), receives(4, 100);
        if (comm.rank() == 2) sends[1] = 101;
        return coll::all_to_all_v(comm, send, sends, recv, receives, Dtype::kFloat32);
      },
      "rank 2 sends 101 elements to rank 1, which expects 100");
}

TEST(Agreement, RootsOfRootedCallsDiffer) {
  expect_mismatch(
      [](comm::Comm& comm, const float* send, float* recv) {
        return coll::rooted_reduce(comm, send, recv, kCount, Dtype::kFloat32, RedOp::kSum,
                                   comm.rank() == 3 ? 1 : 0);
      },
      "reduce of 50000 float32, sum to root 1");
  expect_mismatch(
      [](comm::Comm& comm, const float* send, float* recv) {
        return coll::gather(comm, send, recv, kCount, Dtype::kFloat32, comm.rank() == 3 ? 1 : 0);
      },
      "gather of 50000 float32 to root 1");
  expect_mismatch(
      [](comm::Comm& comm, const float* send, float* recv) {
        return coll::scatter(comm, send, recv, kCount, Dtype::kFloat32, comm.rank() == 3 ? 1 : 0);
      },
      "scatter of 50000 float32 from root 1");
}

// They use one plan, and are two calls.
TEST(Agreement, ARootedCallIsNotTheOneForAll) {
  expect_mismatch(
      [](comm::Comm& comm, const float* send, float* recv) {
        if (comm.rank() == 0)
          return coll::all_reduce(comm, send, recv, kCount, Dtype::kFloat32, RedOp::kSum);
        return coll::rooted_reduce(comm, send, recv, kCount, Dtype::kFloat32, RedOp::kSum, 0);
      },
      "reduce of 50000 float32, sum to root 0");
}

TEST(Agreement, UnevenBlocksDiffer) {
  const auto counts_of = [](const comm::Comm& comm) {
    return std::vector<uint64_t>{10, comm.rank() == 2 ? 21U : 20U, 0, 40'000};
  };
  expect_mismatch(
      [&](comm::Comm& comm, const float* send, float* recv) {
        return coll::all_gather_v(comm, send, recv, counts_of(comm), Dtype::kFloat32);
      },
      "all_gather_v: rank 0 says that block 1 has 20 elements, rank 2 says 21");
  expect_mismatch(
      [&](comm::Comm& comm, const float* send, float* recv) {
        return coll::reduce_scatter_v(comm, send, recv, counts_of(comm), Dtype::kFloat32,
                                      RedOp::kSum);
      },
      "reduce_scatter_v: rank 0 says that block 1 has 20 elements, rank 2 says 21");
}

TEST(Agreement, OptionsDifferAtCreate) {
  auto hub = std::make_shared<test::ThreadHub>(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      const Config config = test::make_config({{"BRAID_LINKS", rank == 0 ? "shm" : "staged"}});
      const auto comm = comm::Comm::create(std::make_unique<test::ThreadGroup>(hub, rank), config);
      ASSERT_FALSE(comm.ok());
      EXPECT_EQ(comm.status().code(), Code::kInvalidArgument) << comm.status().to_string();
      EXPECT_EQ(comm.status().message(),
                rank == 0
                    ? "options differ: rank 0 has BRAID_LINKS=shm; rank 1 has BRAID_LINKS=staged"
                    : "options differ: rank 1 has BRAID_LINKS=staged; rank 0 has BRAID_LINKS=shm");
    });
  for (std::thread& t : ranks) t.join();
}

// How many links plain "rdma" means must be the same for all; which addresses, each knows for itself.
TEST(Agreement, NumbersOfAddressesDifferAtCreate) {
  auto hub = std::make_shared<test::ThreadHub>(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      const Config config = test::make_config(
          {{"BRAID_LINKS", "rdma"},
           {"BRAID_RDMA_ADDRS", rank == 0 ? "127.0.0.1" : "127.0.0.1,127.0.0.2"}});
      const auto comm = comm::Comm::create(std::make_unique<test::ThreadGroup>(hub, rank), config);
      ASSERT_FALSE(comm.ok());
      EXPECT_EQ(comm.status().code(), Code::kInvalidArgument) << comm.status().to_string();
      EXPECT_NE(comm.status().message().find("BRAID_RDMA_ADDRS of 2 addresses"), std::string::npos);
    });
  for (std::thread& t : ranks) t.join();
}

// What one rank can see alone is answered before anything is sent.
TEST(Arguments, RefusedLocally) {
  run_comms(2, {{"BRAID_LINKS", "shm"}}, [](comm::Comm& comm) {
    std::vector<float> a(100, 1.0F), b(100, -1.0F);
    const auto code = [](const Status& s) { return s.code(); };
    const auto bad_dtype = static_cast<Dtype>(63);
    EXPECT_EQ(code(coll::all_gather(comm, a.data(), b.data(), 50, bad_dtype)),
              Code::kInvalidArgument);
    EXPECT_EQ(code(coll::all_reduce(comm, a.data(), b.data(), 100, Dtype::kFloat32,
                                    static_cast<RedOp>(9))),
              Code::kInvalidArgument);
    EXPECT_EQ(code(coll::all_reduce(comm, nullptr, b.data(), 100, Dtype::kFloat32, RedOp::kSum)),
              Code::kInvalidArgument);
    EXPECT_EQ(
        code(coll::all_reduce(comm, a.data(), a.data() + 1, 50, Dtype::kFloat32, RedOp::kSum)),
        Code::kInvalidArgument);
    EXPECT_EQ(code(coll::broadcast(comm, a.data(), 100, Dtype::kFloat32, 2)),
              Code::kInvalidArgument);
    EXPECT_EQ(code(coll::broadcast(comm, a.data(), 100, Dtype::kFloat32, -1)),
              Code::kInvalidArgument);
    EXPECT_EQ(code(coll::all_gather(comm, a.data(), b.data(), uint64_t{1} << 62, Dtype::kFloat64)),
              Code::kInvalidArgument);
    EXPECT_EQ(
        code(coll::reduce_scatter(comm, a.data(), a.data() + 1, 50, Dtype::kFloat32, RedOp::kSum)),
        Code::kInvalidArgument);
    const std::vector<uint64_t> one{50};
    EXPECT_EQ(code(coll::all_to_all_v(comm, a.data(), one, b.data(), one, Dtype::kFloat32)),
              Code::kInvalidArgument);
    for (const int root : {-1, 2}) {
      EXPECT_EQ(code(coll::gather(comm, a.data(), b.data(), 10, Dtype::kFloat32, root)),
                Code::kInvalidArgument);
      EXPECT_EQ(code(coll::scatter(comm, a.data(), b.data(), 10, Dtype::kFloat32, root)),
                Code::kInvalidArgument);
      EXPECT_EQ(code(coll::rooted_reduce(comm, a.data(), b.data(), 10, Dtype::kFloat32, RedOp::kSum,
                                         root)),
                Code::kInvalidArgument);
    }
    const int me = comm.rank();  // what only a root can see
    EXPECT_EQ(code(coll::gather(comm, a.data(), nullptr, 10, Dtype::kFloat32, me)),
              Code::kInvalidArgument);
    EXPECT_EQ(code(coll::scatter(comm, nullptr, b.data(), 10, Dtype::kFloat32, me)),
              Code::kInvalidArgument);
    EXPECT_EQ(code(coll::rooted_reduce(comm, a.data(), a.data() + 1, 10, Dtype::kFloat32,
                                       RedOp::kSum, me)),
              Code::kInvalidArgument);
    EXPECT_EQ(code(coll::all_gather_v(comm, a.data(), b.data(), one, Dtype::kFloat32)),
              Code::kInvalidArgument);
    EXPECT_EQ(
        code(coll::reduce_scatter_v(comm, a.data(), b.data(), one, Dtype::kFloat32, RedOp::kSum)),
        Code::kInvalidArgument);
    EXPECT_TRUE(untouched(b));
    EXPECT_TRUE(coll::barrier(comm).ok());
  });
}

TEST(Arguments, ClosedComm) {
  run_comms(2, {{"BRAID_LINKS", "shm"}}, [](comm::Comm& comm) {
    ASSERT_TRUE(comm.close().ok());
    EXPECT_TRUE(comm.close().ok()) << "closing twice is nothing";
    float x = 1;
    const Status status = coll::all_reduce(comm, &x, &x, 1, Dtype::kFloat32, RedOp::kSum);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("closed"), std::string::npos);
  });
}

TEST(Arguments, ClosedCommExplainsNothing) {
  run_comms(2, {{"BRAID_LINKS", "shm,staged"}}, [](comm::Comm& comm) {
    ASSERT_TRUE(comm.close().ok());
    EXPECT_EQ(comm.explain_words({plan::Op::kAllReduce, 100, 2}).status().code(),
              Code::kInvalidArgument);
    EXPECT_EQ(comm.force_shares({plan::kWhole, 0}).code(), Code::kInvalidArgument);
    EXPECT_NE(comm.health_json(), "");
  });
}

TEST(Arguments, SlotsThatWouldCutElementsAreRefused) {
  auto hub = std::make_shared<test::ThreadHub>(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      const Config config = test::make_config({{"BRAID_SLOT", "5001"}});
      const auto comm = comm::Comm::create(std::make_unique<test::ThreadGroup>(hub, rank), config);
      EXPECT_EQ(comm.status().code(), Code::kInvalidArgument) << comm.status().to_string();
    });
  for (std::thread& t : ranks) t.join();
}

TEST(Arguments, AWindowOfNoCallsIsRefused) {
  for (const char* window : {"0", "1000001", "2147483648", "4294967296"}) {
    const auto hub = std::make_shared<test::ThreadHub>(1);
    const Config config = test::make_config({{"BRAID_BALANCE_WINDOW", window}});
    const auto comm = comm::Comm::create(std::make_unique<test::ThreadGroup>(hub, 0), config);
    EXPECT_EQ(comm.status().code(), Code::kInvalidArgument) << window;
    EXPECT_NE(comm.status().message().find(window), std::string::npos) << comm.status().to_string();
  }
  run_comms(2, {{"BRAID_LINKS", "shm,staged"}, {"BRAID_BALANCE_WINDOW", "1000000"}},
            [](comm::Comm& comm) { EXPECT_TRUE(coll::barrier(comm).ok()); });
}

// A rank that is alive but never enters: the others answer each other's probes, and still the
// deadline comes.
TEST(Agreement, ARankThatNeverEntersIsATimeoutOverSeveralLinks) {
  run_comms(3, {{"BRAID_LINKS", "shm,staged"}, {"BRAID_TIMEOUT", "1s"}, {"BRAID_STALL", "40ms"}},
            [](comm::Comm& comm) {
              ASSERT_TRUE(comm.force_shares({plan::kWhole / 2, plan::kWhole / 2}).ok());
              if (comm.rank() == 2) {
                std::this_thread::sleep_for(std::chrono::milliseconds(2500));
                return;
              }
              std::vector<float> buf(1'000'000, 1.0F);
              const int64_t start_ns = now_ns();
              const Status status = coll::all_reduce(comm, buf.data(), buf.data(), buf.size(),
                                                     Dtype::kFloat32, RedOp::kSum);
              EXPECT_EQ(status.code(), Code::kTimeout) << status.to_string();
              EXPECT_LT(now_ns() - start_ns, 2_s);
              EXPECT_NE(status.message().find("rank 2 has not entered"), std::string::npos)
                  << status.message();
            });
}

TEST(Arguments, SecondThreadIsRefused) {
  run_comms(2, {{"BRAID_LINKS", "shm"}}, [](comm::Comm& comm) {
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      EXPECT_TRUE(coll::barrier(comm).ok());
      return;
    }
    std::thread first([&] { EXPECT_TRUE(coll::barrier(comm).ok()); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const Status second = coll::barrier(comm);
    EXPECT_EQ(second.code(), Code::kInvalidArgument);
    EXPECT_NE(second.message().find("thread"), std::string::npos);
    // Nor does it wait for the call with what is asked between calls.
    const int64_t start_ns = now_ns();
    EXPECT_EQ(comm.force_shares({}).code(), Code::kInvalidArgument);
    const auto plan = comm.explain_words({plan::Op::kAllReduce, 100, 2});
    EXPECT_EQ(plan.status().code(), Code::kInvalidArgument);
    EXPECT_NE(plan.status().message().find("thread"), std::string::npos);
    EXPECT_LT(now_ns() - start_ns, 100_ms);
    first.join();
    EXPECT_TRUE(comm.explain_words({plan::Op::kAllReduce, 100, 2}).ok());
  });
}

}  // namespace
}  // namespace braid
