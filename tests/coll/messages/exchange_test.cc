// Messages between two ranks: who meets whom, what is refused, and what ends.
#include "coll/messages/exchange.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "coll/all_reduce/all_reduce.h"
#include "coll/broadcast/broadcast.h"
#include "coll/leaving.h"
#include "coll/ranks.h"

namespace braid::coll {
namespace {

using test::Goes;
using test::run_comms;
constexpr Message::Way kOut = Message::Way::kSend, kIn = Message::Way::kRecv;

void pause_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

std::vector<int64_t> numbers(int64_t from, size_t count) {
  std::vector<int64_t> made(count);
  for (size_t i = 0; i < count; ++i) made[i] = from + static_cast<int64_t>(i);
  return made;
}

Status send_numbers(comm::Comm& comm, const std::vector<int64_t>& data, int peer) {
  return send(comm, data.data(), data.size(), Dtype::kInt64, peer);
}
Status recv_numbers(comm::Comm& comm, std::vector<int64_t>& data, int peer) {
  return recv(comm, data.data(), data.size(), Dtype::kInt64, peer);
}

TEST(Messages, EveryLengthArrivesInOrder) {
  run_comms(2, {{"BRAID_LINKS", "shm,staged"}}, [](comm::Comm& comm) {
    for (const size_t count : {0U, 1U, 8191U, 8192U, 8193U, 0U, 500'000U}) {
      std::vector<int64_t> data = numbers(static_cast<int64_t>(count), count);
      if (comm.rank() == 0) {
        ASSERT_TRUE(send_numbers(comm, data, 1).ok());
      } else {
        std::vector<int64_t> got(count, -1);
        ASSERT_TRUE(recv_numbers(comm, got, 0).ok());
        EXPECT_EQ(got, data);
      }
    }
  });
}

// Rank 2 sends long before rank 0 wants it, while rank 0 is busy with rank 1 and a rank waits in a
// collective for the others.
TEST(Messages, APeerThatIsEarlyWaits) {
  run_comms(4, {{"BRAID_LINKS", "shm,staged"}}, [](comm::Comm& comm) {
    std::vector<int64_t> data = numbers(100 * comm.rank(), 20'000), got(20'000, -1);
    if (comm.rank() == 0) {
      ASSERT_TRUE(recv_numbers(comm, got, 1).ok());
      EXPECT_EQ(got, numbers(100, 20'000));
      ASSERT_TRUE(recv_numbers(comm, got, 2).ok());
      EXPECT_EQ(got, numbers(200, 20'000));
    }
    if (comm.rank() == 1) pause_ms(50);
    if (comm.rank() == 1 || comm.rank() == 2) {
      ASSERT_TRUE(send_numbers(comm, data, 0).ok());
    }
    ASSERT_TRUE(barrier(comm).ok());
  });
}

TEST(Messages, TwoRanksSendToEachOther) {
  run_comms(2, {{"BRAID_LINKS", "staged"}}, [](comm::Comm& comm) {
    const int peer = 1 - comm.rank();
    std::vector<int64_t> first = numbers(comm.rank(), 70'000), second = numbers(7, 3);
    std::vector<int64_t> got_first(70'000, -1), got_second(3, -1);
    const Message all[] = {{kOut, peer, first.data(), 70'000, Dtype::kInt64},
                           {kOut, peer, second.data(), 3, Dtype::kInt64},
                           {kIn, peer, got_first.data(), 70'000, Dtype::kInt64},
                           {kIn, peer, got_second.data(), 3, Dtype::kInt64}};
    const Status status = exchange(comm, all);
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(got_first, numbers(peer, 70'000));
    EXPECT_EQ(got_second, second);
  });
}

// One that was posted while another waits moves at once, and each is told when it is over.
TEST(Messages, APostedOneJoinsThoseThatWait) {
  run_comms(2, {{"BRAID_LINKS", "shm"}}, [](comm::Comm& comm) {
    std::vector<int64_t> data = numbers(5, 1000), got(1000, -1);
    if (comm.rank() == 1) {
      ASSERT_TRUE(send_numbers(comm, data, 0).ok());
      pause_ms(30);
      ASSERT_TRUE(recv_numbers(comm, got, 0).ok());
      EXPECT_EQ(got, data);
      return;
    }
    Exchange open(comm);
    ASSERT_TRUE(open.status().ok());
    EXPECT_EQ(open.post({kOut, 1, data.data(), 1000, Dtype::kInt64}), 0);
    std::thread poker([&] {
      pause_ms(20);
      open.poke();
    });
    auto ended = open.step();
    ASSERT_TRUE(ended.ok());
    EXPECT_TRUE(ended->empty()) << "the peer wants to send first";
    poker.join();
    EXPECT_EQ(open.post({kIn, 1, got.data(), 1000, Dtype::kInt64}), 1);
    std::vector<int> order;
    while (open.has_open()) {
      ended = open.step();
      ASSERT_TRUE(ended.ok()) << ended.status().to_string();
      for (const auto& one : ended.value()) {
        EXPECT_TRUE(one.status.ok());
        order.push_back(one.id);
      }
    }
    EXPECT_EQ(order, (std::vector<int>{1, 0}));
    EXPECT_EQ(got, data);
  });
}

TEST(Messages, LengthsAndTypesThatDifferAreRefusedOnBothAndTheCommGoesOn) {
  run_comms(3, {{"BRAID_LINKS", "shm,staged"}}, [](comm::Comm& comm) {
    std::vector<int64_t> data = numbers(1, 100), got(100, -1);
    if (comm.rank() < 2) {
      const bool is_sender = comm.rank() == 0;
      Status status = is_sender ? send(comm, data.data(), 100, Dtype::kInt64, 1)
                                : recv(comm, got.data(), 99, Dtype::kInt64, 0);
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_EQ(status.message(), "rank 0 sends 100 int64 to rank 1, which receives 99 int64");
      status = is_sender ? send(comm, data.data(), 100, Dtype::kInt64, 1)
                         : recv(comm, got.data(), 100, Dtype::kUint64, 0);
      EXPECT_EQ(status.message(), "rank 0 sends 100 int64 to rank 1, which receives 100 uint64");
      EXPECT_EQ(got, std::vector<int64_t>(100, -1));
      status = is_sender ? send_numbers(comm, data, 1) : recv_numbers(comm, got, 0);
      EXPECT_TRUE(status.ok()) << status.to_string();
      if (!is_sender) {
        EXPECT_EQ(got, data);
      }
    }
    ASSERT_TRUE(barrier(comm).ok());
  });
}

// As of GPU memory for which this rank has no host memory (on_gpu.h).
TEST(Messages, OneThatIsGivenUpEndsAllOnEveryRank) {
  run_comms(3, {{"BRAID_LINKS", "shm"}, {"BRAID_TIMEOUT", "60s"}}, [](comm::Comm& comm) {
    const int64_t begin_ns = now_ns();
    std::vector<int64_t> got(10);
    Status status;
    if (comm.rank() == 0) {
      Exchange open(comm);
      open.post({kIn, 2, got.data(), 10, Dtype::kInt64});
      const Message given_up{kIn, 1, got.data(), 10, Dtype::kInt64};
      status = open.give_up(given_up, exhausted("no host memory"));
      EXPECT_EQ(open.step().status().message(), status.message());
    } else {
      status = comm.rank() == 1 ? send_numbers(comm, got, 0) : recv_numbers(comm, got, 1);
    }
    EXPECT_EQ(status.code(), Code::kExhausted);
    EXPECT_EQ(status.message(), "recv of 10 int64 from rank 1: no host memory");
    EXPECT_EQ(barrier(comm).message(), "an earlier call failed: " + status.message());
    EXPECT_LT(now_ns() - begin_ns, 30_s);
  });
}

// Rank 1's word that all has arrived lies in rank 0's lane unread when rank 0 hears that it is gone.
TEST(Messages, WhoReceivedAndLeftOrDiedAtOnceHasReceived) {
  const std::vector<int64_t> data = numbers(3, 20'000);
  for (const Goes goes : {Goes::kLeaves, Goes::kDies}) {
    std::vector<int64_t> got(20'000, -1);
    const Status status = test::run_beside_one_who(
        goes, PieceKind::kArrived, {{"BRAID_LINKS", "shm"}}, [&](comm::Comm& comm) {
          return comm.rank() == 0 ? send_numbers(comm, data, 1) : recv_numbers(comm, got, 0);
        });
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(got, data);
  }
}

// The first of two has arrived: only the second is lost with who has left.
TEST(Messages, WhatArrivedBeforeItsReceiverLeftIsNotLostWithTheNext) {
  const std::vector<int64_t> data = numbers(3, 100);
  std::vector<int64_t> got(100, -1);
  const Status status =
      test::run_beside_one_who(Goes::kLeaves, PieceKind::kArrived, {{"BRAID_LINKS", "shm"}},
                               [&](comm::Comm& comm) -> Status {
                                 if (comm.rank() == 1) return recv_numbers(comm, got, 0);
                                 Exchange open(comm);
                                 // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): a message that is sent is only read
                                 auto* const first = const_cast<int64_t*>(data.data());
                                 for (int i = 0; i < 2; ++i)
                                   open.post({kOut, 1, first, 100, Dtype::kInt64});
                                 const auto ended = open.step();
                                 EXPECT_TRUE(ended.ok()) << ended.status().to_string();
                                 if (ended.ok()) {
                                   EXPECT_EQ(ended->size(), 1U);
                                 }
                                 return open.step().status();
                               });
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.to_string();
  EXPECT_EQ(status.message(), "send of 100 int64 to rank 1: rank 1 has left");
}

TEST(Messages, WhatOneRankCanSeeIsRefusedThere) {
  run_comms(2, {{"BRAID_LINKS", "shm"}}, [](comm::Comm& comm) {
    int64_t x = 0;
    for (const int peer : {-1, 2, comm.rank()})
      EXPECT_EQ(send(comm, &x, 1, Dtype::kInt64, peer).code(), Code::kInvalidArgument) << peer;
    EXPECT_EQ(recv(comm, nullptr, 1, Dtype::kInt64, 1 - comm.rank()).code(),
              Code::kInvalidArgument);
    EXPECT_EQ(recv(comm, &x, 1, static_cast<Dtype>(63), 1 - comm.rank()).code(),
              Code::kInvalidArgument);
    ASSERT_TRUE(barrier(comm).ok());
  });
}

// It would be written over before it is sent: which bytes then travel depends on who is faster.
TEST(Messages, WhatIsReceivedLiesApartFromWhatMovesBesideIt) {
  run_comms(2, {{"BRAID_LINKS", "shm"}}, [](comm::Comm& comm) {
    const int peer = 1 - comm.rank();
    std::vector<int64_t> data = numbers(1000 * comm.rank(), 64);
    const auto both = [&](Message::Way first, size_t at, size_t count) {
      const Message two[] = {{first, peer, data.data(), 16, Dtype::kInt64},
                             {kIn, peer, data.data() + at, count, Dtype::kInt64}};
      return exchange(comm, two);
    };
    for (const size_t at : {0U, 1U, 15U}) {
      const Status status = both(kOut, at, 16);
      EXPECT_EQ(status.code(), Code::kInvalidArgument) << at;
      EXPECT_NE(status.message().find("share memory"), std::string::npos) << status.message();
    }
    EXPECT_EQ(both(kIn, 8, 16).code(), Code::kInvalidArgument);
    EXPECT_EQ(data, numbers(1000 * comm.rank(), 64));
    ASSERT_TRUE(barrier(comm).ok());
    EXPECT_TRUE(both(kOut, 16, 16).ok());
    EXPECT_EQ(data[16], 1000 * peer);
    const Message twice[] = {{kOut, peer, data.data(), 16, Dtype::kInt64},  // the same to many
                             {kOut, peer, data.data(), 16, Dtype::kInt64},
                             {kIn, peer, data.data() + 32, 16, Dtype::kInt64},
                             {kIn, peer, data.data() + 48, 16, Dtype::kInt64}};
    EXPECT_TRUE(exchange(comm, twice).ok());
  });
}

// A collective that lies in the way of a message is an error on all ranks, long before the deadline.
void expect_wrong_order(const std::function<Status(comm::Comm&)>& call) {
  run_comms(3, {{"BRAID_LINKS", "shm,staged"}}, [&](comm::Comm& comm) {
    const int64_t start_ns = now_ns();
    Status status = call(comm);
    if (status.ok()) status = barrier(comm);
    EXPECT_FALSE(status.ok()) << "rank " << comm.rank();
    EXPECT_LT(now_ns() - start_ns, 5_s);
    const bool names_it =
        status.message().find("all_reduce of 10 float32, sum") != std::string::npos;
    EXPECT_TRUE(names_it) << "rank " << comm.rank() << ": " << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
    EXPECT_FALSE(barrier(comm).ok()) << "the comm is over";
  });
}

Status reduce_ten(comm::Comm& comm) {
  float x[10] = {};
  return all_reduce(comm, x, x, 10, Dtype::kFloat32, RedOp::kSum);
}

TEST(Messages, ACollectiveInsteadOfRecv) {
  expect_wrong_order([](comm::Comm& comm) {
    const std::vector<int64_t> data = numbers(1, 5);
    return comm.rank() == 0 ? send_numbers(comm, data, 1) : reduce_ten(comm);
  });
}

TEST(Messages, ACollectiveInsteadOfSend) {
  expect_wrong_order([](comm::Comm& comm) {
    std::vector<int64_t> got(5);
    return comm.rank() == 0 ? recv_numbers(comm, got, 1) : reduce_ten(comm);
  });
}

// Rank 0 has taken rank 1's offer while it was busy with rank 2.
TEST(Messages, ACollectiveBeforeAnOfferThatIsKnown) {
  expect_wrong_order([](comm::Comm& comm) {
    std::vector<int64_t> data = numbers(1, 5);
    if (comm.rank() == 1) return send_numbers(comm, data, 0);
    pause_ms(comm.rank() == 2 ? 60 : 20);
    const Status status =
        comm.rank() == 0 ? recv_numbers(comm, data, 2) : send_numbers(comm, data, 0);
    // Rank 2 may hear of the end before it hears that its message has arrived.
    EXPECT_TRUE(status.ok() || comm.rank() == 2) << status.to_string();
    return status.ok() ? reduce_ten(comm) : status;
  });
}

TEST(Messages, TwoThatBothSendFirstFindTheDeadline) {
  run_comms(2, {{"BRAID_LINKS", "shm"}, {"BRAID_TIMEOUT", "500ms"}}, [](comm::Comm& comm) {
    const std::vector<int64_t> data = numbers(1, 5);
    const int64_t start_ns = now_ns();
    const Status status = send_numbers(comm, data, 1 - comm.rank());
    EXPECT_EQ(status.code(), Code::kTimeout) << status.to_string();
    EXPECT_NE(status.message().find("has not called recv"), std::string::npos) << status.message();
    EXPECT_LT(now_ns() - start_ns, 3_s);
  });
}

TEST(Messages, APeerThatHasLeftIsLost) {
  run_comms(2, {{"BRAID_LINKS", "shm"}}, [](comm::Comm& comm) {
    std::vector<int64_t> data = numbers(1, 5);
    if (comm.rank() == 1) {
      pause_ms(30);
      comm.abort("rank 1 gives up");
      return;
    }
    const Status status = recv_numbers(comm, data, 1);
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.to_string();
    EXPECT_NE(status.message().find("gives up"), std::string::npos) << status.message();
  });
}

TEST(Messages, AClosedCommHasNone) {
  run_comms(2, {{"BRAID_LINKS", "shm"}}, [](comm::Comm& comm) {
    ASSERT_TRUE(comm.close().ok());
    const std::vector<int64_t> data = numbers(1, 5);
    EXPECT_EQ(send_numbers(comm, data, 1 - comm.rank()).code(), Code::kInvalidArgument);
  });
}

}  // namespace
}  // namespace braid::coll
