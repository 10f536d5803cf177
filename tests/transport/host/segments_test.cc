// The collective opening of shared memory: every refusal reaches every rank in the same words.
#include "transport/host/segments.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <mutex>

#include "support/thread_group.h"
#include "sys/shm/fake.h"
#include "transport/connect.h"

namespace braid::transport {
namespace {

SegmentRequest request(size_t bytes = 1000) {
  SegmentRequest made;
  made.topic = "test memory";
  made.bytes = bytes;
  made.shape = "plain";
  return made;
}

/// What every rank got when rank r asks with `request_of(r)`.
std::vector<Status> share_on(int size, const std::function<SegmentRequest(int rank)>& request_of) {
  std::vector<Status> outcomes(static_cast<size_t>(size));
  test::run_thread_ranks(size, [&](group::Group& group) {
    outcomes[static_cast<size_t>(group.rank())] =
        share_segments(group, request_of(group.rank()), test::test_deadline()).status();
  });
  return outcomes;
}

void expect_all(const std::vector<Status>& outcomes, Code code, const std::string& part) {
  for (const Status& outcome : outcomes) {
    EXPECT_EQ(outcome.code(), code) << outcome.to_string();
    EXPECT_NE(outcome.message().find(part), std::string::npos) << outcome.to_string();
    EXPECT_EQ(outcome.message(), outcomes[0].message()) << "ranks must agree";
  }
}

TEST(SegmentsTest, EveryRankSeesEveryOthersBytes) {
  test::run_thread_ranks(3, [](group::Group& group) {
    auto segments = share_segments(group, request(), test::test_deadline());
    ASSERT_TRUE(segments.ok()) << segments.status().to_string();
    const auto own = static_cast<size_t>(group.rank());
    EXPECT_EQ(segments->of(group.rank())[0], std::byte{0}) << "fresh memory is zero";
    ASSERT_TRUE(group.barrier("looked", test::test_deadline()).ok());
    for (int rank = 0; rank < 3; ++rank)
      segments->of(rank)[100 * own] = static_cast<std::byte>(10 + own);
    ASSERT_TRUE(group.barrier("written", test::test_deadline()).ok());
    for (size_t writer = 0; writer < 3; ++writer)
      EXPECT_EQ(segments->of(group.rank())[100 * writer], static_cast<std::byte>(10 + writer));
    ASSERT_TRUE(group.barrier("read", test::test_deadline()).ok());
  });
}

// BRAID_HOST_ID is any text.
TEST(SegmentsTest, AHostMayHaveSpaces) {
  const auto on_hosts = [](const std::vector<std::string>& hosts) {
    return share_on(static_cast<int>(hosts.size()), [hosts](int rank) {
      SegmentRequest made = request();
      made.host_id = hosts[static_cast<size_t>(rank)];
      return made;
    });
  };
  for (const Status& outcome : on_hosts({"node a", "node a", "node a"}))
    EXPECT_TRUE(outcome.ok()) << outcome.to_string();
  for (const Status& outcome : on_hosts({" a\nnode 7 ", " a\nnode 7 "}))
    EXPECT_TRUE(outcome.ok()) << outcome.to_string();
  expect_all(on_hosts({"node a", "node a", "node b"}), Code::kUnavailable,
             "rank 0 is on node a and rank 2 on node b");
}

TEST(SegmentsTest, OneRankWithoutMemoryIsNamedOnAll) {
  sys::FakeSharedMemory full;
  full.fail_create_at(1, ENOSPC);
  const auto outcomes = share_on(4, [&](int rank) {
    SegmentRequest made = request();
    if (rank == 2) made.memory = &full;
    return made;
  });
  expect_all(outcomes, Code::kExhausted, "test memory: rank 2");
}

TEST(SegmentsTest, OneRankThatCannotOpenIsNamedOnAll) {
  sys::FakeSharedMemory locked;
  locked.fail_open_at(2, EACCES);
  const auto outcomes = share_on(4, [&](int rank) {
    SegmentRequest made = request();
    if (rank == 3) made.memory = &locked;
    return made;
  });
  expect_all(outcomes, Code::kUnavailable, "test memory: rank 3: segment of rank 1");
}

TEST(SegmentsTest, RefusalOfOneIsToldToAll) {
  const auto outcomes = share_on(2, [](int rank) {
    SegmentRequest made = request();
    if (rank == 1) made.refusal = invalid_argument("slot of 0 bytes\nis too small");
    return made;
  });
  expect_all(outcomes, Code::kInvalidArgument, "rank 1: slot of 0 bytes");
}

TEST(SegmentsTest, DifferentShapesAreRefusedOnAll) {
  const auto outcomes = share_on(3, [](int rank) {
    SegmentRequest made = request(rank == 1 ? 2000 : 1000);
    return made;
  });
  expect_all(outcomes, Code::kInvalidArgument,
             "options differ, rank 0 has plain (1008 bytes), rank 1");
}

TEST(SegmentsTest, RanksOnTwoHostsAreRefusedOnAll) {
  const auto outcomes = share_on(4, [](int rank) {
    SegmentRequest made = request();
    made.host_id = rank < 2 ? "left" : "right";
    return made;
  });
  expect_all(outcomes, Code::kUnavailable, "rank 0 is on left and rank 2 on right");
}

TEST(SegmentsTest, WithoutNeedForOneHostTheOthersAreNull) {
  test::run_thread_ranks(4, [](group::Group& group) {
    SegmentRequest made = request();
    made.needs_one_host = false;
    made.host_id = group.rank() < 2 ? "left" : "right";
    auto segments = share_segments(group, made, test::test_deadline());
    ASSERT_TRUE(segments.ok()) << segments.status().to_string();
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(segments->of(rank) != nullptr, rank / 2 == group.rank() / 2) << rank;
  });
}

/// Opens what nobody offered: a descriptor that was closed and given to another segment.
class MisleadingMemory final : public sys::SharedMemory {
 public:
  Result<sys::Segment> create(std::string_view name, uint64_t bytes) override {
    return sys::real_shared_memory().create(name, bytes);
  }
  Result<sys::Segment> open_peer(int, int, uint64_t bytes) override {
    return sys::real_shared_memory().create("another", bytes);
  }
};

TEST(SegmentsTest, AnotherProcessSegmentIsRecognisedByItsNonce) {
  MisleadingMemory misleading;
  const auto outcomes = share_on(2, [&](int rank) {
    SegmentRequest made = request();
    if (rank == 0) made.memory = &misleading;
    return made;
  });
  expect_all(outcomes, Code::kUnavailable, "is not the one that was offered");
}

/// Lies in the exchange: what a rank of another build or a damaged message would look like.
class GarblingGroup final : public group::Group {
 public:
  GarblingGroup(group::Group& inner, std::string blob) : inner_(inner), blob_(std::move(blob)) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  int local_rank() const override { return inner_.local_rank(); }
  Result<std::vector<std::string>> exchange(std::string_view topic, std::string_view,
                                            Deadline deadline) override {
    return inner_.exchange(topic, blob_, deadline);
  }
  Status barrier(std::string_view topic, Deadline deadline) override {
    return inner_.barrier(topic, deadline);
  }
  bool broken() const noexcept override { return inner_.broken(); }
  Status fate() const override { return inner_.fate(); }
  void report(const Status& why) override { inner_.report(why); }
  void leave() override {}

 private:
  group::Group& inner_;
  const std::string blob_;
};

TEST(SegmentsTest, UnreadableOffersAreRefusedOnAll) {
  for (const std::string blob :
       {"", "ok", "ok here 1 x", "maybe", "no 99 strange code", "no", "ok h 1 2 -5"}) {
    std::vector<Status> outcomes(2);
    test::run_thread_ranks(2, [&](group::Group& group) {
      GarblingGroup garbling(group, blob);
      const bool lies = group.rank() == 1;
      outcomes[static_cast<size_t>(group.rank())] =
          share_segments(lies ? garbling : group, request(), test::test_deadline()).status();
    });
    expect_all(outcomes, Code::kInternal, "test memory: rank 1");
  }
}

TEST(SegmentsTest, MissingRankIsATimeout) {
  auto hub = std::make_shared<test::ThreadHub>(2);
  test::ThreadGroup group(hub, 0);
  const Status status = share_segments(group, request(), Deadline::after_ns(30'000'000)).status();
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_EQ(status.message().find("test memory"), 0U) << status.to_string();
}

using Connect = Result<std::unique_ptr<Lane>> (*)(group::Group&, Doorbell&, const HostLaneOptions&,
                                                  Deadline);

class ConnectTest : public ::testing::TestWithParam<Connect> {
 protected:
  static std::vector<Status> connect_on(
      int size, const std::function<HostLaneOptions(int rank)>& options_of) {
    std::vector<Status> outcomes(static_cast<size_t>(size));
    test::run_thread_ranks(size, [&](group::Group& group) {
      auto doorbell = Doorbell::connect(group, test::test_deadline());
      ASSERT_TRUE(doorbell.ok());
      auto lane = GetParam()(group, **doorbell, options_of(group.rank()), test::test_deadline());
      outcomes[static_cast<size_t>(group.rank())] = lane.status();
    });
    return outcomes;
  }
};

TEST_P(ConnectTest, BadSlotOnOneRankIsNamedOnAll) {
  const auto outcomes = connect_on(2, [](int rank) {
    HostLaneOptions options;
    if (rank == 1) options.slot_bytes = 0;
    return options;
  });
  expect_all(outcomes, Code::kInvalidArgument, "rank 1");
}

TEST_P(ConnectTest, BadDepthIsRefused) {
  const auto outcomes = connect_on(2, [](int) {
    HostLaneOptions options;
    options.depth_pieces = 1 << 20;
    return options;
  });
  expect_all(outcomes, Code::kInvalidArgument, "depth of 1048576 pieces");
}

TEST_P(ConnectTest, TwoHostsAreUnavailable) {
  const auto outcomes = connect_on(2, [](int rank) {
    HostLaneOptions options;
    options.host_id = rank == 0 ? "a" : "b";
    return options;
  });
  expect_all(outcomes, Code::kUnavailable, "ranks must share a host");
}

TEST_P(ConnectTest, ExhaustedMemoryIsNamedOnAll) {
  sys::FakeSharedMemory full;
  full.fail_create_at(1, ENOMEM);
  const auto outcomes = connect_on(3, [&](int rank) {
    HostLaneOptions options;
    if (rank == 1) options.memory = &full;
    return options;
  });
  expect_all(outcomes, Code::kExhausted, "rank 1");
}

TEST_P(ConnectTest, OneRankAloneHasALane) {
  const auto outcomes = connect_on(1, [](int) { return HostLaneOptions{}; });
  EXPECT_TRUE(outcomes[0].ok()) << outcomes[0].to_string();
}

INSTANTIATE_TEST_SUITE_P(HostLanes, ConnectTest, ::testing::Values(&connect_shm, &connect_staged));

}  // namespace
}  // namespace braid::transport
