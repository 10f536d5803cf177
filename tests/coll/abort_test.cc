// Giving a comm up: from another thread than the one in a call, told to every rank, no wait beyond
// the moment.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "coll/all_reduce/all_reduce.h"
#include "coll/ranks.h"

namespace braid {
namespace {

Status sum_once(comm::Comm& comm) {
  std::vector<float> values(1000, 1.0F);
  return coll::all_reduce(comm, values.data(), values.data(), values.size(), Dtype::kFloat32,
                          RedOp::kSum);
}

void expect_given_up(const Status& status, int rank) {
  EXPECT_EQ(status.code(), Code::kPeerLost) << "rank " << rank << ": " << status.to_string();
  EXPECT_NE(status.message().find("gave up at noon"), std::string::npos) << status.message();
}

// Rank 2 never joins the call in which ranks 0 and 1 wait; rank 0 is aborted from a second thread.
TEST(Abort, EndsCallsThatWaitOnEveryRank) {
  test::run_comms(3, {{"BRAID_TIMEOUT", "60s"}, {"BRAID_LINKS", "shm"}}, [](comm::Comm& comm) {
    ASSERT_TRUE(sum_once(comm).ok());
    const int64_t start_ns = now_ns();
    std::thread aborter;
    if (comm.rank() == 0)
      aborter = std::thread([&comm] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        comm.abort("gave up at noon");
      });
    if (comm.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    expect_given_up(sum_once(comm), comm.rank());
    expect_given_up(sum_once(comm), comm.rank());  // and every later one
    EXPECT_LT(now_ns() - start_ns, 20_s);
    if (aborter.joinable()) aborter.join();
  });
}

TEST(Abort, OfAClosedCommIsNothing) {
  test::run_comms(2, {{"BRAID_LINKS", "shm"}}, [](comm::Comm& comm) {
    ASSERT_TRUE(sum_once(comm).ok());
    ASSERT_TRUE(comm.close().ok());
    comm.abort("too late");
    EXPECT_EQ(sum_once(comm).code(), Code::kInvalidArgument);
  });
}

}  // namespace
}  // namespace braid
