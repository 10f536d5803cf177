// Collectives in two stages among ranks of one machine that pretend to be on several: what comes
// out, bit for bit, whatever the links, shares and cells; what crosses between "nodes"; links lost.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "base/sanitizer.h"
#include "coll/all_gather/all_gather.h"
#include "coll/all_reduce/all_reduce.h"
#include "coll/all_reduce/steps.h"
#include "coll/all_to_all/all_to_all.h"
#include "coll/broadcast/broadcast.h"
#include "coll/gather/gather.h"
#include "coll/messages/messages.h"
#include "coll/ranks.h"
#include "coll/reduce/casts.h"
#include "coll/reduce_scatter/reduce_scatter.h"
#include "coll/rooted_reduce/rooted_reduce.h"
#include "coll/scatter/scatter.h"
#include "comm/state.h"
#include "plan/nodes.h"
#include "support/tensors.h"
#include "transport/host/doorbell.h"
#include "transport/paced.h"

namespace braid::two_stages {
namespace {

using golden::Array;
using test::Fill;
using test::mixed;
using test::Options;
using test::Tensors;

struct Shape {
  int nodes;
  int per_node;
  bool is_exact = false;  // BRAID_NODES=exact
  int size() const { return nodes * per_node; }
};

/// As run_comms, each rank on the host of its node.
void run_nodes(const Shape& shape, const Options& options,
               const std::function<void(comm::Comm&)>& body,
               const std::function<int(int)>& node_of) {
  auto hub = std::make_shared<test::ThreadHub>(shape.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < shape.size(); ++rank)
    threads.emplace_back([&, rank] {
      Options mine = options;
      mine["BRAID_HOST_ID"] = fmt::format("host{}", node_of(rank));
      auto comm = comm::Comm::create(std::make_unique<test::ThreadGroup>(hub, rank),
                                     test::make_config(mine));
      ASSERT_TRUE(comm.ok()) << "rank " << rank << ": " << comm.status().to_string();
      body(*comm.value());
      EXPECT_TRUE(comm.value()->close().ok());
    });
  for (std::thread& thread : threads) thread.join();
}
void run_nodes(const Shape& shape, const Options& options,
               const std::function<void(comm::Comm&)>& body) {
  run_nodes(shape, options, body, [&](int rank) { return rank / shape.per_node; });
}

/// Partials of nodes in rank order, rounded; those in the order of nodes, rounded. An average is
/// divided at the end, by all: -0.0 more changes no sum.
Array staged_sum(const Shape& shape, const std::vector<Array>& operands, uint64_t count,
                 Dtype dtype, RedOp op) {
  const RedOp inside = op == RedOp::kAvg ? RedOp::kSum : op;
  std::vector<Array> partials;
  for (int node = 0; node < shape.nodes; ++node) {
    std::vector<const void*> srcs;
    for (int local = 0; local < shape.per_node; ++local)
      srcs.push_back(operands[static_cast<size_t>(node * shape.per_node + local)].data());
    partials.push_back(golden::reduce(srcs, count, dtype, inside));
  }
  Array nothing(count * dtype_bytes(dtype));
  if (golden::is_float(dtype))
    for (uint64_t i = 0; i < count; ++i)
      golden::set_element(nothing.data(), i, dtype, golden::encode(-0.0, dtype));
  std::vector<const void*> srcs;
  for (const Array& partial : partials) srcs.push_back(partial.data());
  if (op == RedOp::kAvg) srcs.resize(static_cast<size_t>(shape.size()), nothing.data());
  return golden::reduce(srcs, count, dtype, op);
}

/// Widened first, and rounded at the end.
Array exact_sum(Shape shape, const std::vector<Array>& operands, uint64_t count, Dtype dtype,
                RedOp op) {
  std::vector<Array> wide;
  for (const Array& operand : operands) {
    wide.emplace_back(count * sizeof(float));
    coll::widen(operand.data(), reinterpret_cast<float*>(wide.back().data()), count, dtype);
  }
  const Array sum = staged_sum(shape, wide, count, Dtype::kFloat32, op);
  Array rounded(count * dtype_bytes(dtype));
  coll::narrow(reinterpret_cast<const float*>(sum.data()), rounded.data(), count, dtype);
  return rounded;
}

Array expected_sum(const Shape& shape, const Tensors& data, RedOp op, uint64_t first,
                   uint64_t count) {
  if (shape.is_exact && coll::rounds_partials(data.dtype, op))
    return exact_sum(shape, data.all(first, count), count, data.dtype, op);
  return staged_sum(shape, data.all(first, count), count, data.dtype, op);
}

/// One call of every operation that has stages, of random types and lengths.
class Checker {
 public:
  Checker(comm::Comm& comm, const Shape& shape, uint64_t call)
      : comm_(comm),
        shape_(shape),
        call_(call),
        dtype_(kAllDtypes[mixed(1, 0, call) % std::size(kAllDtypes)]),
        op_(kAllRedOps[mixed(2, 0, call) % std::size(kAllRedOps)]),
        count_(mixed(3, 0, call) % 8 == 0 ? mixed(4, 0, call) % 4 : mixed(5, 0, call) % 900),
        element_(dtype_bytes(dtype_)),
        data_{test::kAllFills[mixed(6, 0, call) % std::size(test::kAllFills)], dtype_, comm.size(),
              call} {}

  void all() {
    all_gather();
    all_gather_v();
    all_reduce();
    reduce_scatter();
    reduce_scatter_v();
    rooted_reduce();
  }

 private:
  std::string where(const char* what) const {
    return fmt::format("{} {} of {} {}, call {} rank {}", what, redop_name(op_), count_,
                       dtype_name(dtype_), call_, comm_.rank());
  }
  uint64_t n() const { return static_cast<uint64_t>(comm_.size()); }
  std::vector<uint64_t> counts() const {
    std::vector<uint64_t> counts;
    for (uint64_t r = 0; r < n(); ++r) counts.push_back((count_ * (r + 1) / 3) % (count_ + 1));
    return counts;
  }
  void expect(const Status& status, const Array& got, const Array& want, const char* what) const {
    ASSERT_TRUE(status.ok()) << where(what) << ": " << status.to_string();
    ASSERT_EQ(test::first_difference(got, want, dtype_), "") << where(what);
  }

  void all_gather() {
    const Array send = data_.of(comm_.rank(), 0, count_);
    Array recv(n() * send.size(), std::byte{0xA5}), want;
    std::byte* const own = recv.data() + static_cast<uint64_t>(comm_.rank()) * send.size();
    const bool in_place = call_ % 2 == 0 && count_ > 0;
    if (in_place) std::copy(send.begin(), send.end(), own);
    for (int r = 0; r < comm_.size(); ++r) {
      const Array block = data_.of(r, 0, count_);
      want.insert(want.end(), block.begin(), block.end());
    }
    const Status status =
        coll::all_gather(comm_, in_place ? own : send.data(), recv.data(), count_, dtype_);
    expect(status, recv, want, "all_gather");
  }

  void all_gather_v() {
    const std::vector<uint64_t> each = counts();
    const Array send = data_.of(comm_.rank(), 0, each[static_cast<size_t>(comm_.rank())]);
    Array want;
    for (int r = 0; r < comm_.size(); ++r) {
      const Array block = data_.of(r, 0, each[static_cast<size_t>(r)]);
      want.insert(want.end(), block.begin(), block.end());
    }
    Array recv(want.size(), std::byte{0xA5});
    expect(coll::all_gather_v(comm_, send.data(), recv.data(), each, dtype_), recv, want,
           "all_gather_v");
  }

  void all_reduce() {
    const Array send = data_.of(comm_.rank(), 0, count_);
    Array recv = send;
    const Status status = coll::all_reduce(comm_, call_ % 2 == 0 ? recv.data() : send.data(),
                                           recv.data(), count_, dtype_, op_);
    expect(status, recv, expected_sum(shape_, data_, op_, 0, count_), "all_reduce");
  }

  void reduce_scatter() {
    Array send = data_.of(comm_.rank(), 0, n() * count_);
    const uint64_t first = static_cast<uint64_t>(comm_.rank()) * count_;
    Array recv(count_ * element_, std::byte{0xA5});
    std::byte* const own = send.data() + first * element_;
    const bool in_place = call_ % 3 == 0 && count_ > 0;
    const Status status =
        coll::reduce_scatter(comm_, send.data(), in_place ? own : recv.data(), count_, dtype_, op_);
    if (in_place) recv.assign(own, own + recv.size());
    expect(status, recv, expected_sum(shape_, data_, op_, first, count_), "reduce_scatter");
  }

  void reduce_scatter_v() {
    const std::vector<uint64_t> each = counts();
    const auto me = static_cast<size_t>(comm_.rank());
    const uint64_t total = std::accumulate(each.begin(), each.end(), uint64_t{0});
    const uint64_t first = std::accumulate(each.begin(), each.begin() + comm_.rank(), uint64_t{0});
    const Array send = data_.of(comm_.rank(), 0, total);
    Array recv(each[me] * element_, std::byte{0xA5});
    expect(coll::reduce_scatter_v(comm_, send.data(), recv.data(), each, dtype_, op_), recv,
           expected_sum(shape_, data_, op_, first, each[me]), "reduce_scatter_v");
  }

  void rooted_reduce() {
    const int root = static_cast<int>(call_ % n());
    const Array send = data_.of(comm_.rank(), 0, count_);
    Array recv = send;
    const bool in_place = call_ % 2 == 1;
    const Status status = coll::rooted_reduce(comm_, in_place ? recv.data() : send.data(),
                                              recv.data(), count_, dtype_, op_, root);
    const bool is_root = comm_.rank() == root;
    expect(status, recv, is_root ? expected_sum(shape_, data_, op_, 0, count_) : send, "reduce");
  }

  comm::Comm& comm_;
  Shape shape_;
  uint64_t call_;
  Dtype dtype_;
  RedOp op_;
  uint64_t count_;
  size_t element_;
  Tensors data_;
};

/// Random shares between the rails, from the call's number alone.
void force_random(comm::Comm& comm, uint64_t call) {
  if (comm.links().size() < 2) return;
  const auto first = static_cast<uint32_t>(mixed(9, 0, call) % (plan::kWhole + 1));
  ASSERT_TRUE(comm.force_shares({first, plan::kWhole - first}).ok());
}

void run_calls(const Shape& shape, const Options& options, uint64_t num_calls) {
  run_nodes(shape, options, [&](comm::Comm& comm) {
    for (uint64_t call = 0; call < (kIsSanitized ? num_calls / 3 : num_calls); ++call) {
      force_random(comm, call);
      Checker(comm, shape, call).all();
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

const Options kAllLinks = {{"BRAID_LINKS", "rdma,shm,staged"},
                           {"BRAID_RDMA_ADDRS", "127.0.0.1,127.0.0.2"},
                           {"BRAID_CELL", "256"}};

TEST(TwoStages, TwoNodesOfTwo) { run_calls({2, 2}, kAllLinks, 24); }
TEST(TwoStages, TwoNodesOfThree) { run_calls({2, 3}, kAllLinks, 12); }
TEST(TwoStages, ThreeNodesOfTwo) { run_calls({3, 2}, kAllLinks, 12); }
TEST(TwoStages, FourNodesOfTwo) { run_calls({4, 2}, kAllLinks, 8); }

// Partials in fp32, and one rounding: the numbers of BRAID_NCCL_NODES_EXACT on GPUs.
TEST(TwoStages, ExactSumsRoundOnce) {
  Options options = kAllLinks;
  options["BRAID_NODES"] = "exact";
  run_calls({2, 2, true}, options, 24);
  run_calls({3, 2, true}, options, 12);
}

// ... which are other bits than two roundings give, and ranks that mean other types find out.
TEST(TwoStages, ExactSumsAreOthers) {
  const Tensors data{Fill::kHeavyTail, Dtype::kBfloat16, 4, 5};
  EXPECT_NE(
      test::first_difference(expected_sum({2, 2}, data, RedOp::kSum, 0, 500),
                             expected_sum({2, 2, true}, data, RedOp::kSum, 0, 500), data.dtype),
      "");
  run_nodes({2, 2}, {{"BRAID_NODES", "exact"}}, [](comm::Comm& comm) {
    std::vector<uint16_t> buf(64, 1);
    const Dtype dtype = comm.rank() == 3 ? Dtype::kFloat16 : Dtype::kBfloat16;
    const Status status = coll::all_reduce(comm, buf.data(), buf.data(), 64, dtype, RedOp::kSum);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.to_string();
    EXPECT_EQ(buf, std::vector<uint16_t>(64, 1));
  });
}

// The same bits over the network alone, over one link in memory, and in cells of any size.
TEST(TwoStages, LinksAndCellsChangeNoBit) {
  run_calls({2, 2}, {{"BRAID_LINKS", "rdma"}}, 8);
  run_calls({2, 2}, {{"BRAID_LINKS", "rdma,staged"}, {"BRAID_CELL", "64"}}, 8);
  run_calls({2, 2}, {}, 8);
}

// Ranks that do not lie node by node, or are told to, are added straight in rank order.
TEST(TwoStages, OtherMapsAndFlatAddInRankOrder) {
  const auto check = [](comm::Comm& comm) {
    const Tensors data{Fill::kHeavyTail, Dtype::kBfloat16, comm.size(), 5};
    Array recv = data.of(comm.rank(), 0, 500);
    ASSERT_TRUE(
        coll::all_reduce(comm, recv.data(), recv.data(), 500, Dtype::kBfloat16, RedOp::kSum).ok());
    EXPECT_EQ(test::first_difference(recv, data.expected(RedOp::kSum, 0, 500), data.dtype), "");
    EXPECT_FALSE(comm.state().nodes.has_stages());
  };
  run_nodes({2, 2}, {}, check, [](int rank) { return rank % 2; });
  run_nodes({2, 2}, {}, check, [](int rank) { return rank == 3 ? 1 : 0; });
  run_nodes({2, 2}, {{"BRAID_NODES", "flat"}}, check);
}

// ... and the two orders do differ, or the test above would prove nothing.
TEST(TwoStages, AddNodeByNode) {
  const Tensors data{Fill::kHeavyTail, Dtype::kBfloat16, 4, 5};
  EXPECT_NE(test::first_difference(expected_sum({2, 2}, data, RedOp::kSum, 0, 500),
                                   data.expected(RedOp::kSum, 0, 500), data.dtype),
            "");
}

TEST(TwoStages, WhatHasNoStagesStillWorks) {
  run_nodes({2, 2}, kAllLinks, [](comm::Comm& comm) {
    const uint64_t count = 700;
    const Tensors data{Fill::kRandomBits, Dtype::kInt32, comm.size(), 3};
    const Array send = data.of(comm.rank(), 0, 4 * count);
    Array recv(send.size());
    ASSERT_TRUE(coll::all_to_all(comm, send.data(), recv.data(), count, Dtype::kInt32).ok());
    for (int r = 0; r < comm.size(); ++r)
      EXPECT_EQ(test::first_difference(
                    recv.data() + static_cast<uint64_t>(r) * count * 4,
                    data.of(r, static_cast<uint64_t>(comm.rank()) * count, count), data.dtype),
                "");
    Array buf = data.of(comm.rank(), 0, count);
    ASSERT_TRUE(coll::broadcast(comm, buf.data(), count, Dtype::kInt32, 1).ok());
    EXPECT_EQ(test::first_difference(buf, data.of(1, 0, count), data.dtype), "");
    ASSERT_TRUE(coll::gather(comm, send.data(), recv.data(), count, Dtype::kInt32, 3).ok());
    if (comm.rank() == 3) {
      EXPECT_EQ(test::first_difference(recv.data() + count * 4, data.of(1, 0, count), data.dtype),
                "");
    }
    ASSERT_TRUE(coll::barrier(comm).ok());
  });
}

// What leaves a node over links to other nodes is what the plan says, and no more.
TEST(TwoStages, BytesBetweenNodesAreThePlans) {
  const Shape shape{2, 4};
  constexpr uint64_t kCount = 40'000;  // of float32, a rank's
  run_nodes(shape, {{"BRAID_LINKS", "rdma,shm,staged"}}, [&](comm::Comm& comm) {
    const uint64_t total = kCount * 4 * static_cast<uint64_t>(comm.size());
    std::vector<float> small(kCount, 1), large(kCount * 8, 1);
    const auto sent = [&](const Status& status) {
      EXPECT_TRUE(status.ok()) << status.to_string();
      uint64_t bytes = comm.last_call().links[0].sent_bytes;
      std::vector<uint64_t> of_all(static_cast<size_t>(comm.size()));
      EXPECT_TRUE(coll::all_gather(comm, &bytes, of_all.data(), 1, Dtype::kUint64).ok());
      return std::accumulate(of_all.begin(), of_all.begin() + shape.per_node, uint64_t{0});
    };
    const auto planned = [&](plan::Op op, uint64_t bytes) {
      return static_cast<uint64_t>(
          plan::staged_traffic({op, bytes, comm.size()}, {shape.nodes, shape.per_node})
              .cable_bytes);
    };
    EXPECT_EQ(sent(coll::all_gather(comm, small.data(), large.data(), kCount, Dtype::kFloat32)),
              planned(plan::Op::kAllGather, total));
    EXPECT_EQ(sent(coll::reduce_scatter(comm, large.data(), small.data(), kCount, Dtype::kFloat32,
                                        RedOp::kSum)),
              planned(plan::Op::kReduceScatter, total));
    EXPECT_EQ(sent(coll::all_reduce(comm, large.data(), large.data(), kCount * 8, Dtype::kFloat32,
                                    RedOp::kSum)),
              planned(plan::Op::kAllReduce, total));
  });
}

transport::PacedLane& lane_of(comm::Comm& comm, size_t link) {
  return dynamic_cast<transport::PacedLane&>(*comm.state().links[link].lane);
}

// A rail that is cut, or a node's own link: the others carry on, and no bit changes.
void lose(size_t link) {
  Options options = kAllLinks;
  options["BRAID_PACE"] = "rdma=400MB/s,shm=2GB/s,staged=2GB/s";
  options["BRAID_STALL"] = "100ms";
  options["BRAID_CELL"] = "4096";
  const Shape shape{2, 2};
  run_nodes(shape, options, [&](comm::Comm& comm) {
    for (uint64_t call = 0; call < 6; ++call) Checker(comm, shape, call).all();
    if (comm.rank() == 1) lane_of(comm, link).set_link(transport::LinkSwitch::kDead);
    for (uint64_t call = 6; call < 18; ++call) {
      Checker(comm, shape, call).all();
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(TwoStages, ALostRailIsLeft) { lose(0); }
TEST(TwoStages, ALostLinkOfANodeIsLeft) { lose(2); }
TEST(TwoStages, TheOtherLostLinkOfANodeIsLeft) { lose(3); }

TEST(TwoStages, AMismatchIsAnErrorOnAllRanks) {
  run_nodes({2, 2}, kAllLinks, [](comm::Comm& comm) {
    std::vector<float> buf(64, 1);
    const uint64_t count = comm.rank() == 3 ? 32 : 64;
    const Status status =
        coll::all_reduce(comm, buf.data(), buf.data(), count, Dtype::kFloat32, RedOp::kSum);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.to_string();
    EXPECT_EQ(buf, std::vector<float>(64, 1));
    EXPECT_TRUE(
        coll::all_reduce(comm, buf.data(), buf.data(), 64, Dtype::kFloat32, RedOp::kSum).ok());
    EXPECT_EQ(buf, std::vector<float>(64, 4));
  });
}

/// Address space that is there and costs nothing: nobody looks at it.
struct Vast {
  explicit Vast(uint64_t size)
      : bytes(size),
        data(::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    EXPECT_NE(data, MAP_FAILED);
  }
  ~Vast() { ::munmap(data, bytes); }
  const uint64_t bytes;
  void* const data;
};

/// This process may have so many bytes more, until the end of this object.
class FewMoreBytes {
 public:
  explicit FewMoreBytes(uint64_t bytes) {
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    EXPECT_GT(pages, 0u);
    EXPECT_EQ(::getrlimit(RLIMIT_AS, &before_), 0);
    rlimit now = before_;
    now.rlim_cur = pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) + bytes;
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &now), 0);
  }
  ~FewMoreBytes() { EXPECT_EQ(::setrlimit(RLIMIT_AS, &before_), 0); }

 private:
  rlimit before_{};
};

/// A barrier in time: a rank whose comm was not made never comes. Not one of the comm's own, which takes
/// memory.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size) {}
  bool meet() {
    std::unique_lock lock(mutex_);
    const int round = num_met_ / size_;
    if (++num_met_ % size_ == 0) changed_.notify_all();
    return changed_.wait_for(lock, std::chrono::seconds(30),
                             [&] { return num_met_ / size_ > round; });
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_met_ = 0;
};

// The partials of other nodes are kept here, as much as the call's result is long.
TEST(TwoStages, NoMemoryForSumsIsAnErrorOfAll) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer ends the process where memory runs out";
  const Shape shape{2, 2};
  constexpr uint64_t kBytes = 1 << 30;
  const Vast send(kBytes * 4), recv(kBytes);
  ASSERT_NE(send.data, MAP_FAILED);
  ASSERT_NE(recv.data, MAP_FAILED);
  Meeting all(shape.size());
  std::optional<FewMoreBytes> limit;
  run_nodes(shape, kAllLinks, [&](comm::Comm& comm) {
    std::vector<float> from(64, 1), to(16);
    EXPECT_TRUE(
        coll::reduce_scatter(comm, from.data(), to.data(), 16, Dtype::kFloat32, RedOp::kSum).ok());
    ASSERT_TRUE(all.meet());
    if (comm.rank() == 0) limit.emplace(kBytes / 4);
    ASSERT_TRUE(all.meet());
    const Status status = coll::reduce_scatter(comm, send.data, recv.data, kBytes / sizeof(float),
                                               Dtype::kFloat32, RedOp::kSum);
    EXPECT_EQ(status.code(), Code::kExhausted) << status.to_string();
    EXPECT_NE(status.message().find("no memory for 1073741824 bytes of other nodes' partials"),
              std::string::npos)
        << status.to_string();
    ASSERT_TRUE(all.meet());
    if (comm.rank() == 0) limit.reset();
    ASSERT_TRUE(all.meet());
  });
}

TEST(TwoStages, OptionsOfNodesAreChecked) {
  auto hub = std::make_shared<test::ThreadHub>(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      const auto comm = comm::Comm::create(std::make_unique<test::ThreadGroup>(hub, rank),
                                           test::make_config({{"BRAID_NODES", "steep"}}));
      ASSERT_FALSE(comm.ok());
      EXPECT_NE(comm.status().message().find("steep"), std::string::npos);
    });
  for (std::thread& thread : threads) thread.join();
}

// Their bells are in memory that hosts do not share: who is told of another host has none.
TEST(TwoStages, RanksOfTwoHostsShareNoBell) {
  std::barrier<> both(2);
  run_nodes({2, 1}, {{"BRAID_LINKS", "rdma"}}, [&](comm::Comm& comm) {
    transport::Doorbell& doorbell = *comm.state().doorbell;
    doorbell.arm();
    both.arrive_and_wait();
    doorbell.ring(1 - comm.rank());
    both.arrive_and_wait();
    const int64_t begin_ns = now_ns();
    doorbell.sleep(begin_ns + 5'000'000);
    EXPECT_GE(now_ns() - begin_ns, 4'900'000) << "rung by a rank of another host";
    both.arrive_and_wait();
  });
}

}  // namespace
}  // namespace braid::two_stages
