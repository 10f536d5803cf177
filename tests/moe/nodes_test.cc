// Between nodes: rows go along rails, once to each node, and are landed by node mates; sums per node
// where the caller asks for them. Every result beside the reference, and what links carry beside the
// formula. Over tcp on loopback, and over RDMA devices where scripts/test_verbs has made some.
#include <gmock/gmock.h>

#include "moe/buffers.h"
#include "moe/host/stream.h"
#include "moe/routings.h"

namespace braid::moe {
namespace {

using reference::Bytes;
using testing::HasSubstr;

constexpr int kMostTokens = 160;  // room for tokens that name an expert six times

std::string from_environment(const char* name) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody writes it
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// So many ranks on each of so many nodes, reached over a link.
struct Way {
  std::string name;
  std::string link;
  int num_nodes = 2, per_node = 2;
};
std::string name_of_way(const testing::TestParamInfo<Way>& info) {
  return fmt::format("{}_{}x{}", info.param.name, info.param.num_nodes, info.param.per_node);
}

/// Nodes are made of threads by BRAID_HOST_ID.
void run_nodes(const Way& way, const BufferOptions& options,
               const std::function<void(Buffer&)>& body) {
  test::run_buffers(way.num_nodes * way.per_node, options,
                    test::config_of({{"BRAID_LINKS", way.link}}), body,
                    [&](int rank, Config& config) {
                      const auto node = std::to_string(rank / way.per_node);
                      ASSERT_TRUE(config.set("BRAID_HOST_ID", "node" + node).ok());
                    });
}

class MoeNodes : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Tcp, MoeNodes,
                         testing::Values(Way{"tcp", "rdma:tcp", 2, 1}, Way{"tcp", "rdma:tcp", 2, 2},
                                         Way{"tcp", "rdma:tcp", 3, 2},
                                         Way{"tcp", "rdma:tcp", 2, 4}),
                         name_of_way);

// Soft-RoCE of a virtual machine, by libfabric. 4x1 on a busy machine finds out when a lane closes while
// its peers still send (EndHandle in sys/fabric/real.h).
std::vector<Way> verbs_ways() {
  const std::string address = from_environment("BRAID_VERBS_ADDRESS");
  if (address.empty() || !from_environment("BRAID_VERBS_SIDE").empty()) return {};
  return {Way{"verbs", "rdma:verbs;ofi_rxm:" + address, 2, 1},
          Way{"verbs", "rdma:verbs;ofi_rxm:" + address, 2, 2},
          Way{"verbs", "rdma:verbs;ofi_rxm:" + address, 4, 1},
          Way{"tcp", "rdma:tcp:" + address, 2, 2}};
}
INSTANTIATE_TEST_SUITE_P(Verbs, MoeNodes, testing::ValuesIn(verbs_ways()), name_of_way);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MoeNodes);

TEST_P(MoeNodes, EveryResultIsTheReference) {
  const Way& way = GetParam();
  const int n = way.num_nodes * way.per_node;
  run_nodes(way, {low_latency_half_bytes(kMostTokens, 64, n, 64), false}, [&](Buffer& buffer) {
    EXPECT_EQ(buffer.nodes().per_node, way.per_node == 1 ? n : way.per_node);
    for (uint64_t seed = 0; seed < 6; ++seed)
      test::check_calls(buffer, seed + 500 * static_cast<uint64_t>(n), kMostTokens,
                        way.per_node == 1 ? n : way.per_node);
  });
}

// A window of a few rows: many rounds, each of which crosses while the next one is gathered.
TEST_P(MoeNodes, SumsByNodeAreTheReferenceInManyRounds) {
  const Way& way = GetParam();
  const int n = way.num_nodes * way.per_node, per_node = way.per_node == 1 ? n : way.per_node;
  run_nodes(way, {uint64_t{1 << 11} * static_cast<uint64_t>(n), false}, [&](Buffer& buffer) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const auto p = test::random_problem(seed + 90, n, 96, 60);
      test::Normal call(p, buffer.rank());
      ASSERT_TRUE(call.run(buffer).ok());
      EXPECT_EQ(call.x, reference::by_source(p, buffer.rank(), 1).rows);
      std::vector<Bytes> y;
      for (int r = 0; r < n; ++r)
        y.push_back(test::made_rows(seed, r, reference::by_source(p, r, 1).rows.size()));
      Bytes out;
      std::vector<float> weights;
      Combine combine = call.combine(y[static_cast<size_t>(buffer.rank())], out, weights);
      combine.sums_by_node = true;
      const Status status = buffer.combine(combine);
      ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(out,
                reference::combine_by_node(p, buffer.rank(), Dtype::kBfloat16, y, {}, per_node));
    }
  });
}

// One row per (token, node), and for every rank that gets it what differs; all to one rank of a node.
TEST(MoeRails, BytesThatCrossAreTheFormulas) {
  const Way way{"tcp", "rdma:tcp", 2, 4};
  constexpr uint64_t kRow = 1024;
  run_nodes(way, {1 << 20, false}, [&](Buffer& buffer) {
    const auto p = test::random_problem(10, 8, kRow);
    test::Normal call(p, buffer.rank());
    ASSERT_TRUE(call.run(buffer).ok());
    const int first = buffer.rank() < 4 ? 4 : 0, taker = first + buffer.rank() % 4;
    const uint64_t k = static_cast<uint64_t>(p.num_topk);
    const uint64_t local = static_cast<uint64_t>(p.num_experts) / 8;
    constexpr uint64_t kPlace = sizeof(StreamPlace), kHead = sizeof(StreamRecord);
    const uint64_t announced = kHead + kPlace + (4 * (8 + local) + 127) / 128 * 128;
    uint64_t expected = 4 * (announced + 2 * kLineBytes) +  // a flag and an ack for each
                        reference::node_bytes(p, buffer.rank(), first, 4, kHead + kRow);
    for (int peer = first; peer < first + 4; ++peer)
      expected +=
          reference::copy_bytes(p, buffer.rank(), peer, kHead + kPlace + 16 + 8 * k + kPlace);
    for (int peer = first; peer < first + 4; ++peer)
      EXPECT_EQ(buffer.sent_bytes(peer), peer == taker ? expected : 0);
  });
}

// Three ranks here and one there: every rank is reached directly.
TEST(MoeRails, NodesOfDifferentSizesHaveNone) {
  test::run_buffers(
      4, {low_latency_half_bytes(kMostTokens, 64, 4, 64), false},
      test::config_of({{"BRAID_LINKS", "rdma:tcp"}}),
      [](Buffer& buffer) {
        EXPECT_FALSE(buffer.nodes().has_stages());
        for (uint64_t seed = 0; seed < 3; ++seed) test::check_calls(buffer, seed, kMostTokens, 4);
      },
      [](int rank, Config& config) {
        ASSERT_TRUE(config.set("BRAID_HOST_ID", rank < 3 ? "one" : "two").ok());
      });
}

// A buffer that goes on without ranks that are late must not reach others through them.
TEST(MoeRails, ABufferThatMayShrinkHasNone) {
  const Way way{"tcp", "rdma:tcp", 2, 2};
  run_nodes(way, {low_latency_half_bytes(kMostTokens, 64, 4, 64), true}, [](Buffer& buffer) {
    EXPECT_FALSE(buffer.nodes().has_stages());
    for (uint64_t seed = 0; seed < 3; ++seed) test::check_calls(buffer, seed, kMostTokens, 4);
  });
}

TEST(MoeRails, ALargeMessageGoesOnWhileItIsPacked) {
  const Way way{"tcp", "rdma:tcp", 2, 2};
  run_nodes(way, {8 << 20, false}, [](Buffer& buffer) {
    const auto p = test::random_problem(20, 4, 16 << 10, 200);
    test::Normal call(p, buffer.rank());
    ASSERT_TRUE(call.run(buffer).ok());
    EXPECT_EQ(call.x, reference::by_source(p, buffer.rank(), 1).rows);
  });
}

TEST(MoeRails, WhoeverSumsOtherwiseIsAnErrorOfAll) {
  const Way way{"tcp", "rdma:tcp", 2, 2};
  run_nodes(way, {low_latency_half_bytes(kMostTokens, 64, 4, 64), false}, [](Buffer& buffer) {
    const auto p = test::random_problem(10, 4, 64);
    test::Normal call(p, buffer.rank());
    ASSERT_TRUE(call.run(buffer).ok());
    Bytes out;
    std::vector<float> weights;
    Combine combine = call.combine(call.x, out, weights);
    combine.sums_by_node = buffer.rank() == 2;
    const Status status = buffer.combine(combine);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("ranks disagree: rank 0 has options"));
    test::check_calls(buffer, 11, kMostTokens, 2);
  });
}

// Rounds are on their way while one is found wrong; all ranks end with the same number all the same.
class MoeLateRound : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Nodes, MoeLateRound,
                         testing::Values(Way{"tcp", "rdma:tcp", 2, 2}, Way{"shm", "shm", 1, 4}),
                         name_of_way);

// Three calls behind it: a phase that nobody settled would stop the third.
TEST_P(MoeLateRound, AHandleThatIsWrongIsAnErrorOfAllAndTheNextCallsWork) {
  const Way& way = GetParam();
  uint64_t seed = 90;
  while (test::random_problem(seed, 4, 96, 60).ranks[1].count < 40) ++seed;
  const auto p = test::random_problem(seed, 4, 96, 60);
  run_nodes(way, {uint64_t{1 << 11} * 4, false}, [&](Buffer& buffer) {
    for (const bool is_of_a_node_mate : {true, false}) {
      test::Normal call(p, buffer.rank());
      ASSERT_TRUE(call.run(buffer).ok());
      Bytes out;
      std::vector<float> weights;
      Combine combine = call.combine(call.x, out, weights);
      combine.sums_by_node = true;
      if (buffer.rank() == 1) {
        bool* const goes = call.is_in_rank.get() + 10 * 4;
        if (is_of_a_node_mate)
          goes[0] = !goes[0];
        else
          goes[2] = goes[3] = !(goes[2] || goes[3]);
      }
      const Status status = buffer.combine(combine);
      EXPECT_THAT(status.message(),
                  HasSubstr(buffer.rank() == 1 ? "argument handle: expected"
                                               : "rank 1 could not take part in its call"));
      for (int repeat = 0; repeat < 3; ++repeat) {
        test::Normal again(p, buffer.rank());
        ASSERT_TRUE(again.run(buffer).ok());
        EXPECT_EQ(again.x, reference::by_source(p, buffer.rank(), 1).rows);
      }
    }
  });
}

// Buffers end at once behind their last call, in whatever order.
TEST(MoeRails, WhatIsUnderWayIsHandedOnBeforeABufferEnds) {
  for (int repeat = 0; repeat < 8; ++repeat) {
    const Way way{"tcp", "rdma:tcp", 2, 2};
    run_nodes(way, {low_latency_half_bytes(kMostTokens, 64, 4, 64), false}, [&](Buffer& buffer) {
      test::check_calls(buffer, static_cast<uint64_t>(repeat), kMostTokens, 2);
    });
  }
}

/// Two machines, this test running on both at the same time: two ranks on each.
TEST(MoeTwoMachines, EveryResultIsTheReference) {
  const std::string side = from_environment("BRAID_VERBS_SIDE");
  if (side.empty()) GTEST_SKIP() << "needs two machines: scripts/test_verbs";
  const std::string own = from_environment("BRAID_VERBS_ADDRESS"),
                    other = from_environment("BRAID_VERBS_PEER");
  for (const std::string provider : {"verbs;ofi_rxm", "tcp"}) {
    group::Identity job;
    job.size = 4;
    job.store_address = side == "0" ? own : other;
    job.store_port = provider == "tcp" ? 27'000 : 26'000;
    job.job_token = "a token of two virtual machines";
    test::run_job(job, side == "0" ? 0 : 2, 2,
                  {low_latency_half_bytes(kMostTokens, 64, 4, 64), false},
                  test::config_of({{"BRAID_LINKS", "rdma"},
                                   {"BRAID_RDMA_PROVIDER", provider},
                                   {"BRAID_RDMA_ADDRS", own},
                                   {"BRAID_BIND", own},
                                   {"BRAID_TIMEOUT", "60s"}}),
                  [&](Buffer& buffer) {
                    EXPECT_EQ(buffer.nodes(), (fabric::NodeMap{2, 2}));
                    for (uint64_t seed = 0; seed < 3; ++seed)
                      test::check_calls(buffer, seed, kMostTokens, 2);
                  });
  }
}

// A record cut anywhere lands the same bytes; one that is none is refused.
TEST(MoeStream, IsTheSameHoweverItIsCut) {
  std::vector<std::byte> windows[2] = {std::vector<std::byte>(256), std::vector<std::byte>(256)};
  std::vector<std::byte> stream;
  const auto append = [&](const auto& value) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
    stream.insert(stream.end(), bytes, bytes + sizeof value);
  };
  for (uint64_t record = 0; record < 3; ++record) {
    append(StreamRecord{20 + record, 1 + record % 2});
    for (uint64_t place = 0; place < 1 + record % 2; ++place)
      append(StreamPlace{(record + place) % 2, 50 * record});
    for (uint64_t i = 0; i < 20 + record; ++i) stream.push_back(static_cast<std::byte>(i + record));
  }
  const auto target = [&](uint64_t rank, uint64_t offset, uint64_t bytes) -> std::byte* {
    return rank < 2 && offset + bytes <= 256 ? windows[rank].data() + offset : nullptr;
  };
  for (size_t cut = 1; cut < 40; ++cut) {
    for (auto& window : windows) std::ranges::fill(window, std::byte{0});
    StreamReader reader;
    for (size_t at = 0; at < stream.size(); at += cut)
      ASSERT_TRUE(
          reader.take(std::span(stream).subspan(at, std::min(cut, stream.size() - at)), target)
              .ok());
    const auto here = [&](size_t window, size_t offset, size_t record) {
      for (size_t i = 0; i < 20 + record; ++i)
        ASSERT_EQ(windows[window][offset + i], static_cast<std::byte>(i + record)) << cut;
    };
    here(0, 0, 0);
    here(1, 50, 1);
    here(0, 50, 1);
    here(0, 100, 2);
    EXPECT_EQ(windows[1][0], std::byte{0});
  }
  const auto refused = [&](StreamRecord record, StreamPlace place) {
    stream.clear();
    append(record);
    append(place);
    return !StreamReader().take(stream, target).ok();
  };
  EXPECT_TRUE(refused({10, 1}, {2, 0}));
  EXPECT_TRUE(refused({10, 1}, {0, 250}));
  EXPECT_TRUE(refused({10, 0}, {0, 0}));
  EXPECT_TRUE(refused({0, 1}, {0, 0}));
  EXPECT_TRUE(refused({10, 65}, {0, 0}));
  EXPECT_FALSE(refused({10, 1}, {0, 0}));
}

}  // namespace
}  // namespace braid::moe
