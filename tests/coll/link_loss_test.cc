// A link that is cut, dies or slows down while collectives run: no error, no wrong byte, the share
// moves and returns.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/sanitizer.h"
#include "base/units.h"
#include "coll/all_gather/all_gather.h"
#include "coll/all_reduce/all_reduce.h"
#include "coll/broadcast/broadcast.h"
#include "coll/messages/messages.h"
#include "coll/ranks.h"
#include "comm/state.h"
#include "support/rows.h"
#include "transport/paced.h"

namespace braid {
namespace {

using test::run_comms;
using transport::LinkSwitch;
using transport::PacedLane;

constexpr uint64_t kElements = 400'000;  // 1.6 MB of float32

// Links are held to rates that the machine reaches, and one is given up that is silent for a while.
// Under a sanitizer, beside compilers, that is a quarter of the rates and five times the while:
// else a link that computes too slowly loses its share before the test cuts it.
const test::Options kThreeLinks = {
    {"BRAID_LINKS", "shm,staged,rdma"},
    {"BRAID_PACE", kIsSanitized ? "shm=40MB/s,staged=20MB/s,rdma=10MB/s"
                                : "shm=160MB/s,staged=80MB/s,rdma=40MB/s"},
    {"BRAID_STALL", kIsSanitized ? "300ms" : "60ms"},
    {"BRAID_BALANCE_WINDOW", "3"}};

PacedLane& lane_of(comm::Comm& comm, size_t link) {
  return dynamic_cast<PacedLane&>(*comm.state().links[link].lane);
}

// One all_reduce with data of this call; EXPECTs every element.
void checked_call(comm::Comm& comm, int call) {
  static const test::Rows<float> rows(4, kElements);
  const auto number = static_cast<uint64_t>(call);
  const float* const input = rows.of(comm.rank(), number);
  std::vector<float> buf(input, input + kElements);
  const Status status =
      coll::all_reduce(comm, buf.data(), buf.data(), kElements, Dtype::kFloat32, RedOp::kSum);
  ASSERT_TRUE(status.ok()) << "call " << call << ": " << status.to_string();
  ASSERT_EQ(test::first_wrong(buf.data(), rows.sum(comm.size(), number), kElements), kElements)
      << "call " << call;
}

uint32_t share_now(comm::Comm& comm, size_t link) {
  return comm.plan_for({plan::Op::kAllReduce, kElements * 4, comm.size()}).value().shares[link];
}

void cut_and_return(size_t link, int size) {
  run_comms(size, kThreeLinks, [&](comm::Comm& comm) {
    for (int call = 0; call < 6; ++call) checked_call(comm, call);
    const uint32_t before = share_now(comm, link);
    EXPECT_GT(before, 0U);
    lane_of(comm, link).set_link(LinkSwitch::kCut);
    for (int call = 6; call < 16; ++call) checked_call(comm, call);
    EXPECT_EQ(share_now(comm, link), 0U) << "rank " << comm.rank();
    EXPECT_NE(comm.health_json().find("\"down\""), std::string::npos);
    ASSERT_TRUE(coll::barrier(comm).ok());
    lane_of(comm, link).set_link(LinkSwitch::kOn);
    std::this_thread::sleep_for(
        std::chrono::milliseconds(300));  // the keeper lets the old pieces go
    for (int call = 16; call < 30; ++call) checked_call(comm, call);
    EXPECT_GT(share_now(comm, link), 0U) << "rank " << comm.rank();
    EXPECT_EQ(comm.health_json().find("\"down\""), std::string::npos) << comm.health_json();
  });
}

TEST(LinkLoss, FirstLinkCutAndReturned) { cut_and_return(0, 2); }
TEST(LinkLoss, StagedLinkCutAndReturned) { cut_and_return(1, 3); }
TEST(LinkLoss, RdmaLinkCutAndReturned) { cut_and_return(2, 2); }

TEST(LinkLoss, CutInTheMiddleOfACall) {
  run_comms(4, kThreeLinks, [&](comm::Comm& comm) {
    for (int call = 0; call < 4; ++call) {
      std::thread cutter;
      if (call == 2)
        cutter = std::thread([&] {
          std::this_thread::sleep_for(std::chrono::microseconds(500 + 400 * comm.rank()));
          lane_of(comm, 1).set_link(LinkSwitch::kCut);
        });
      checked_call(comm, call);
      if (cutter.joinable()) cutter.join();
    }
    for (int call = 4; call < 8; ++call) checked_call(comm, call);
    EXPECT_EQ(share_now(comm, 1), 0U);
  });
}

// A message, too, goes on over the links that are left.
TEST(LinkLoss, CutInTheMiddleOfAMessage) {
  run_comms(3, kThreeLinks, [&](comm::Comm& comm) {
    static const test::Rows<float> rows(3, kElements);
    for (uint64_t call = 0; call < 6 && comm.rank() < 2; ++call) {
      std::thread cutter;
      if (call == 2)
        cutter = std::thread([&] {
          std::this_thread::sleep_for(std::chrono::microseconds(700));
          lane_of(comm, 0).set_link(LinkSwitch::kCut);
        });
      if (call == 4) lane_of(comm, 1).set_link(LinkSwitch::kCut);  // what is announced is lost, too
      if (call == 5) lane_of(comm, 1).set_link(LinkSwitch::kOn);
      const float* const input = rows.of(0, call);
      std::vector<float> buf(kElements, -1.0F);
      if (comm.rank() == 0) std::copy(input, input + kElements, buf.begin());
      const Status status = comm.rank() == 0
                                ? coll::send(comm, buf.data(), kElements, Dtype::kFloat32, 1)
                                : coll::recv(comm, buf.data(), kElements, Dtype::kFloat32, 0);
      if (cutter.joinable()) cutter.join();
      ASSERT_TRUE(status.ok()) << "message " << call << ": " << status.to_string();
      ASSERT_EQ(test::first_wrong(buf.data(), input, kElements), kElements) << "message " << call;
    }
    if (comm.rank() == 2) lane_of(comm, 0).set_link(LinkSwitch::kCut);
    checked_call(comm, 7);  // over what is left; late pieces of messages disturb nobody
    if (comm.rank() < 2) {
      EXPECT_NE(comm.health_json().find("\"down\""), std::string::npos);
    }
  });
}

// The offer is lost with its link, while the want arrives: cells on the other links come before
// anything that says what they are.
TEST(LinkLoss, CutWithTheOfferOnIt) {
  run_comms(2, kThreeLinks, [&](comm::Comm& comm) {
    if (comm.rank() == 0) lane_of(comm, 0).set_link(LinkSwitch::kCut);
    static const test::Rows<float> rows(2, kElements);
    const float* const input = rows.of(0, 0);
    std::vector<float> buf(kElements, -1.0F);
    if (comm.rank() == 0) std::copy(input, input + kElements, buf.begin());
    const Status status = comm.rank() == 0
                              ? coll::send(comm, buf.data(), kElements, Dtype::kFloat32, 1)
                              : coll::recv(comm, buf.data(), kElements, Dtype::kFloat32, 0);
    ASSERT_TRUE(status.ok()) << status.to_string();
    ASSERT_EQ(test::first_wrong(buf.data(), input, kElements), kElements);
  });
}

// Ranks that had left a link, and one that had not, cut their blocks at different places: operands of
// a cell came over several links, whose slots were held for each other, and nothing moved any more.
TEST(LinkLoss, KnownToSomeRanksOnly) {
  run_comms(3, kThreeLinks, [&](comm::Comm& comm) {
    lane_of(comm, 0).set_link(LinkSwitch::kCut);
    if (comm.rank() < 2) {
      const std::lock_guard lock(comm.state().mutex);
      comm.state().mark_down(0, "it is cut");
    }
    for (int call = 0; call < 3; ++call) checked_call(comm, call);
  });
}

// A rank that had left one link, which works again, hung on its last one when that was cut: no
// other link was left to tell a stall from a slow peer.
TEST(LinkLoss, LastLinkIsLeftForOneThatCameBackInTheSameCall) {
  test::Options options = kThreeLinks;
  options["BRAID_LINKS"] = "shm,staged";
  options["BRAID_PACE"] = "shm=40MB/s,staged=40MB/s";
  options["BRAID_TIMEOUT"] = "5s";
  run_comms(2, options, [&](comm::Comm& comm) {
    checked_call(comm, 0);
    const auto set_after_ms = [&](int ms, size_t link, LinkSwitch state) {
      std::this_thread::sleep_for(std::chrono::milliseconds(ms));
      lane_of(comm, link).set_link(state);
    };
    std::thread hand([&] {
      set_after_ms(20, 1, LinkSwitch::kCut);
      set_after_ms(200, 1, LinkSwitch::kOn);
      set_after_ms(100, 0, LinkSwitch::kCut);
    });
    constexpr size_t kLong = 15 * kElements;  // 24 MB: 0.6 s over one link
    std::vector<float> own(kLong), all(2 * kLong);
    for (size_t i = 0; i < kLong; ++i) own[i] = static_cast<float>(i % 8191) + comm.rank();
    const Status status = coll::all_gather(comm, own.data(), all.data(), kLong, Dtype::kFloat32);
    hand.join();
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (size_t i = 0; i < 2 * kLong; ++i)
      ASSERT_EQ(all[i], static_cast<float>(i % kLong % 8191) + static_cast<float>(i / kLong));
    EXPECT_GT(comm.state().links[0].down_count, 0U) << comm.health_json();
  });
}

TEST(LinkLoss, DeadLaneIsLeftAtOnce) {
  run_comms(3, kThreeLinks, [&](comm::Comm& comm) {
    checked_call(comm, 0);
    lane_of(comm, 0).set_link(LinkSwitch::kDead);
    for (int call = 1; call < 8; ++call) checked_call(comm, call);
    EXPECT_EQ(share_now(comm, 0), 0U);
  });
}

TEST(LinkLoss, LastLinkGivesTimeoutOrUnavailable) {
  test::Options options = kThreeLinks;
  options["BRAID_LINKS"] = "shm,staged";
  options["BRAID_PACE"] = "shm=160MB/s,staged=80MB/s";
  options["BRAID_TIMEOUT"] = "1s";
  run_comms(2, options, [&](comm::Comm& comm) {
    checked_call(comm, 0);
    for (size_t link = 0; link < 2; ++link) lane_of(comm, link).set_link(LinkSwitch::kCut);
    std::vector<float> buf(kElements, 1.0F);
    const int64_t start_ns = now_ns();
    const Status status =
        coll::all_reduce(comm, buf.data(), buf.data(), kElements, Dtype::kFloat32, RedOp::kSum);
    EXPECT_TRUE(status.code() == Code::kTimeout || status.code() == Code::kUnavailable)
        << status.to_string();
    EXPECT_LT(now_ns() - start_ns, 5_s);
    EXPECT_FALSE(coll::barrier(comm).ok()) << "a failed comm stays failed";
  });
}

// A killed rank takes its links with it. A lane that noticed before the group's monitor once made
// this "no link is left", on every rank, where the cause was a death.
TEST(LinkLoss, LinksOfADeadRankAreNotTheCause) {
  run_comms(3, kThreeLinks, [&](comm::Comm& comm) {
    checked_call(comm, 0);
    if (comm.rank() == 2) return;
    for (size_t link = 0; link < 3; ++link) lane_of(comm, link).set_link(LinkSwitch::kDead);
    std::thread monitor([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      comm.state().group->report(peer_lost("rank 2 is gone"));
    });
    std::vector<float> buf(kElements, 1.0F);
    const Status status =
        coll::all_reduce(comm, buf.data(), buf.data(), kElements, Dtype::kFloat32, RedOp::kSum);
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.to_string();
    monitor.join();
  });
}

// A link that takes one cell at a time serves its peers in turn. Once it served the first peer
// alone until that one's slots were full, and the last one heard nothing for so long that the link
// was taken for dead.
TEST(LinkLoss, SlowLinkServesAllPeers) {
  test::Options options = kThreeLinks;
  options["BRAID_PACE"] = "shm=800MB/s,staged=400MB/s,rdma=20MB/s";
  run_comms(4, options, [&](comm::Comm& comm) {
    ASSERT_TRUE(comm.force_shares({0, 0, plan::kWhole}).ok());
    checked_call(comm, 0);
    EXPECT_EQ(comm.state().links[2].down_count, 0U) << comm.health_json();
  });
}

// 160 : 80 : 40 becomes 160 : 80 : 20: the third link's share follows.
TEST(RunTimeBalance, FollowsARateChange) {
  if (kIsThreadSanitized)
    GTEST_SKIP() << "skipped: under the thread sanitizer the processor is slower than the links";
  run_comms(2, kThreeLinks, [&](comm::Comm& comm) {
    for (int call = 0; call < 12; ++call) checked_call(comm, call);
    const uint32_t before = share_now(comm, 2);
    ASSERT_TRUE(coll::barrier(comm).ok());
    lane_of(comm, 2).set_pace({0.02, 0});
    for (int call = 12; call < 42; ++call) checked_call(comm, call);
    const uint32_t after = share_now(comm, 2);
    EXPECT_LT(after, before * 3 / 4) << "before " << before << " after " << after << "\n"
                                     << comm.health_json();
  });
}

// Shares of one call are the same on all ranks: each rank sends what it used, call by call.
TEST(RunTimeBalance, AllRanksUseTheSameShares) {
  run_comms(3, kThreeLinks, [&](comm::Comm& comm) {
    for (int call = 0; call < 30; ++call) {
      if (call == 10) lane_of(comm, 1).set_pace({0.02, 0});
      checked_call(comm, call);
      const plan::Shares mine = comm.last_call().plan.shares;
      std::vector<uint32_t> all(mine.size() * 3);
      ASSERT_TRUE(
          coll::all_gather(comm, mine.data(), all.data(), mine.size(), Dtype::kUint32).ok());
      for (size_t i = 0; i < all.size(); ++i)
        ASSERT_EQ(all[i], mine[i % mine.size()]) << "call " << call;
    }
  });
}

}  // namespace
}  // namespace braid
