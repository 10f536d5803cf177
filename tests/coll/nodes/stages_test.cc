// Stages on fake GPUs: nodes of ranks as threads, rails between them that are late by a seed. Every
// byte of every result against the host's kernels, added as coll/host/node_sums.h adds.
#include "coll/nodes/stages.h"
#include "base/sanitizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "coll/device/fake_sums.h"
#include "coll/reduce/casts.h"
#include "coll/reduce/reduce.h"
#include "support/fake_rail.h"
#include "support/gpu_ranks.h"
#include "support/graph_cuda.h"
#include "support/tensors.h"

namespace braid::coll::nodes {
namespace {

using fabric::NodeMap;
using test::FakeRail;
using test::GuardedMemory;
using test::RailHub;

/// Knows what each stream waits for: FakeCuda does work where it is enqueued, so that a wait that is
/// missing is seen in no byte.
class WaitingCuda final : public test::GraphCuda {
 public:
  using GraphCuda::GraphCuda;

  /// Pieces of work on `other` that `stream` would not wait for now.
  uint64_t num_missed(sys::Stream stream, sys::Stream other) {
    const std::lock_guard lock(clocks_mutex_);
    return clocks_[other.handle][other.handle] - clocks_[stream.handle][other.handle];
  }
  /// What is on it never ends.
  void hold(sys::Stream stream) {
    const std::lock_guard lock(clocks_mutex_);
    held_ = stream.handle;
  }
  Result<bool> is_done(sys::Event event) override {
    {
      const std::lock_guard lock(clocks_mutex_);
      if (held_ != nullptr && recorded_[event.handle].contains(held_)) return false;
    }
    return GraphCuda::is_done(event);
  }
  Result<bool> is_done(sys::Stream stream) override { return GraphCuda::is_done(stream); }
  Status record(sys::Event event, sys::Stream stream) override {
    {
      const std::lock_guard lock(clocks_mutex_);
      recorded_[event.handle] = clocks_[stream.handle];
    }
    return GraphCuda::record(event, stream);
  }
  Status wait_event(sys::Stream stream, sys::Event event) override {
    {
      const std::lock_guard lock(clocks_mutex_);
      for (const auto& [other, time] : recorded_[event.handle]) {
        uint64_t& known = clocks_[stream.handle][other];
        known = std::max(known, time);
      }
    }
    return GraphCuda::wait_event(stream, event);
  }
  Status copy_on_device(sys::DevicePtr to, sys::DevicePtr from, uint64_t bytes,
                        sys::Stream stream) override {
    tick(stream);
    return GraphCuda::copy_on_device(to, from, bytes, stream);
  }
  Status launch_kernel(sys::Kernel kernel, const sys::LaunchShape& shape, sys::Stream stream,
                       std::span<void*> arguments) override {
    tick(stream);
    return GraphCuda::launch_kernel(kernel, shape, stream, arguments);
  }

 private:
  void tick(sys::Stream stream) {
    const std::lock_guard lock(clocks_mutex_);
    ++clocks_[stream.handle][stream.handle];
  }

  std::mutex clocks_mutex_;
  std::map<void*, std::map<void*, uint64_t>> clocks_;  // by stream: of whose work it is behind
  std::map<void*, std::map<void*, uint64_t>> recorded_;
  void* held_ = nullptr;
};

/// A rail that looks, at its first call on `stream`, which writes the scratch, what that waits for.
class WatchedRail final : public Rail {
 public:
  explicit WatchedRail(FakeRail& rail, sys::Cuda& cuda)
      : rail_(rail), cuda_(static_cast<WaitingCuda&>(cuda)) {}
  void watch(sys::Stream stream, sys::Stream earlier) {
    stream_ = stream;
    earlier_ = earlier;
    has_looked_ = false;
  }
  bool has_looked() const { return has_looked_; }
  uint64_t num_missed() const { return num_missed_; }

  Status exchange(const Passage& passage, sys::Stream stream) override {
    look(stream);
    return rail_.exchange(passage, stream);
  }
  Status all_gather(sys::DevicePtr own, sys::DevicePtr recv, uint64_t bytes,
                    sys::Stream stream) override {
    look(stream);
    return rail_.all_gather(own, recv, bytes, stream);
  }
  Status error() override { return rail_.error(); }
  void abort() override { rail_.abort(); }

 private:
  void look(sys::Stream stream) {
    if (stream != stream_ || has_looked_) return;
    has_looked_ = true;
    num_missed_ = cuda_.num_missed(stream, earlier_);
  }

  FakeRail& rail_;
  WaitingCuda& cuda_;
  sys::Stream stream_{}, earlier_{};
  bool has_looked_ = false;
  uint64_t num_missed_ = 0;
};

/// With none of the default streams' names.
sys::Stream fresh_stream(sys::Cuda& cuda) {
  sys::Stream stream{};
  while (reinterpret_cast<uintptr_t>(stream.handle) <= 1)
    stream = cuda.create_stream(sys::StreamPriority::kNormal).value();
  return stream;
}

/// One rank of all nodes.
struct StageRank {
  test::GpuRank& gpu;
  Stages& stages;
  FakeRail& rail;
  const NodeMap& map;
  int rank;
};

struct Run {
  NodeMap map;
  StageTerms terms;
  uint64_t seed = 0;
  int64_t patience_ms = 10'000;
};

void run_stages(const Run& run, const std::function<void(StageRank&)>& body) {
  std::vector<std::unique_ptr<RailHub>> hubs;
  for (int local = 0; local < run.map.per_node; ++local)
    hubs.push_back(std::make_unique<RailHub>(run.map.num_nodes, run.seed, run.patience_ms));
  std::vector<std::unique_ptr<sys::FakeCuda>> machines;
  std::vector<std::thread> nodes;
  for (int node = 0; node < run.map.num_nodes; ++node) {
    machines.push_back(std::make_unique<WaitingCuda>(run.map.per_node));
    test::define_team_kernels(*machines.back());
    test::define_sums(*machines.back());
  }
  for (int node = 0; node < run.map.num_nodes; ++node)
    nodes.emplace_back([&, node] {
      test::run_gpus(
          run.map.per_node, *machines[static_cast<size_t>(node)], {}, [&](test::GpuRank& gpu) {
            FakeRail rail(*hubs[static_cast<size_t>(gpu.rank())], node);
            auto stages = Stages::make(gpu.device, rail, run.map, node, run.terms);
            ASSERT_TRUE(stages.ok()) << stages.status().to_string();
            StageRank rank{gpu, **stages, rail, run.map, run.map.rank_at(node, gpu.rank())};
            body(rank);
          });
    });
  for (std::thread& node : nodes) node.join();
  for (const auto& machine : machines) EXPECT_EQ(machine->alive(), sys::FakeCudaCounts{});
}

/// Bytes that depend on rank, call and place; of floats, numbers of all sizes and signs.
std::vector<std::byte> operand(int rank, uint64_t call, uint64_t bytes) {
  std::vector<std::byte> made(bytes);
  for (uint64_t i = 0; i < bytes; i += 8) {
    const uint64_t word = test::mixed(static_cast<uint64_t>(rank) + 1, call, i);
    std::memcpy(made.data() + i, &word, std::min<uint64_t>(8, bytes - i));
  }
  return made;
}

/// Block `block` of the sum of all ranks' operands, node by node.
std::vector<std::byte> sum_of(const NodeMap& map, uint64_t call, int block, uint64_t count,
                              Dtype dtype, RedOp op) {
  const uint64_t bytes = count * dtype_bytes(dtype);
  const RedOp partial_op = op == RedOp::kAvg ? RedOp::kSum : op;
  std::vector<std::vector<std::byte>> partials;
  for (int node = 0; node < map.num_nodes; ++node) {
    std::vector<std::vector<std::byte>> operands;
    std::vector<const void*> at;
    for (int local = 0; local < map.per_node; ++local)
      operands.push_back(
          operand(map.rank_at(node, local), call, bytes * static_cast<uint64_t>(map.size())));
    for (const auto& one : operands)
      at.push_back(one.data() + static_cast<uint64_t>(block) * bytes);
    partials.emplace_back(bytes);
    reduce(at, partials.back().data(), count, dtype, partial_op);
  }
  std::vector<const void*> at;
  for (const auto& one : partials) at.push_back(one.data());
  std::vector<std::byte> sum(bytes);
  reduce_partials(at, sum.data(), count, dtype, op, static_cast<size_t>(map.size()));
  return sum;
}

/// The same where partials are fp32: one rounding, at the end.
std::vector<std::byte> exact_sum_of(const NodeMap& map, uint64_t call, int block, uint64_t count,
                                    Dtype dtype, RedOp op) {
  if (!rounds_partials(dtype, op)) return sum_of(map, call, block, count, dtype, op);
  const uint64_t bytes = count * dtype_bytes(dtype);
  std::vector<std::vector<float>> partials(static_cast<size_t>(map.num_nodes));
  std::vector<const void*> at;
  for (int node = 0; node < map.num_nodes; ++node) {
    std::vector<std::vector<float>> operands;
    std::vector<const void*> in_node;
    for (int local = 0; local < map.per_node; ++local) {
      const auto small =
          operand(map.rank_at(node, local), call, bytes * static_cast<uint64_t>(map.size()));
      operands.emplace_back(count);
      widen(small.data() + static_cast<uint64_t>(block) * bytes, operands.back().data(), count,
            dtype);
    }
    for (const auto& one : operands) in_node.push_back(one.data());
    auto& partial = partials[static_cast<size_t>(node)];
    partial.resize(count);
    reduce(in_node, partial.data(), count, Dtype::kFloat32, op == RedOp::kAvg ? RedOp::kSum : op);
    at.push_back(partial.data());
  }
  std::vector<float> sum(count);
  reduce_partials(at, sum.data(), count, Dtype::kFloat32, op, static_cast<size_t>(map.size()));
  std::vector<std::byte> rounded(bytes);
  narrow(sum.data(), rounded.data(), count, dtype);
  return rounded;
}

uint64_t num_wrong(const std::byte* found, const std::vector<std::byte>& wanted) {
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < wanted.size(); ++i) wrong += found[i] == wanted[i] ? 0 : 1;
  return wrong;
}

void check_all_gather(StageRank& rank, uint64_t call, uint64_t count, Dtype dtype, bool in_place) {
  const uint64_t block = count * dtype_bytes(dtype);
  const auto size = static_cast<uint64_t>(rank.map.size());
  GuardedMemory send(rank.gpu.cuda, block), recv(rank.gpu.cuda, block * size);
  std::fill_n(recv.data(), recv.bytes(), std::byte{0xee});
  const auto own = operand(rank.rank, call, block);
  std::byte* const place = recv.data() + static_cast<uint64_t>(rank.rank) * block;
  std::copy(own.begin(), own.end(), in_place ? place : send.data());
  const sys::DevicePtr from =
      in_place ? recv.get() + static_cast<uint64_t>(rank.rank) * block : send.get();
  const Status status = rank.stages.all_gather(from, recv.get(), count, dtype, {});
  ASSERT_TRUE(status.ok()) << status.to_string();
  for (int source = 0; source < rank.map.size(); ++source)
    EXPECT_EQ(num_wrong(recv.data() + static_cast<uint64_t>(source) * block,
                        operand(source, call, block)),
              0U)
        << "block " << source << " on rank " << rank.rank << ", " << count << " "
        << dtype_name(dtype);
  EXPECT_TRUE(send.is_guarded() && recv.is_guarded());
}

using Expected = decltype(&sum_of);

void check_reduce_scatter(StageRank& rank, uint64_t call, uint64_t count, Dtype dtype, RedOp op,
                          bool in_place, Expected expected = sum_of) {
  const uint64_t block = count * dtype_bytes(dtype);
  const auto size = static_cast<uint64_t>(rank.map.size());
  GuardedMemory send(rank.gpu.cuda, block * size), recv(rank.gpu.cuda, block);
  const auto own = operand(rank.rank, call, block * size);
  std::copy(own.begin(), own.end(), send.data());
  const uint64_t mine = static_cast<uint64_t>(rank.rank) * block;
  const sys::DevicePtr to = in_place ? send.get() + mine : recv.get();
  const Status status = rank.stages.reduce_scatter(send.get(), to, count, dtype, op, {});
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(num_wrong(in_place ? send.data() + mine : recv.data(),
                      expected(rank.map, call, rank.rank, count, dtype, op)),
            0U)
      << "rank " << rank.rank << ", " << count << " " << dtype_name(dtype) << " " << redop_name(op);
  if (!in_place) {
    EXPECT_EQ(num_wrong(send.data(), own), 0U) << "operands are not touched";
  }
  EXPECT_TRUE(send.is_guarded() && recv.is_guarded());
}

// Under a sanitizer a call costs ten times as much: the smallest maps show it all paths.
const std::vector<NodeMap> kGatherMaps =
    kIsSanitized ? std::vector<NodeMap>{{3, 2}} : std::vector<NodeMap>{{2, 2}, {3, 2}, {2, 3}};
const std::vector<NodeMap> kSumMaps =
    kIsSanitized ? std::vector<NodeMap>{{3, 2}} : std::vector<NodeMap>{{2, 2}, {3, 2}};

// Blocks of one piece, of a piece and a bit, of many; in place and not; on one stream and on two.
TEST(Stages, GatherEveryBlock) {
  for (const NodeMap& map : kGatherMaps)
    for (const bool is_on_one_stream : {false, true})
      run_stages({map, {256_KiB, is_on_one_stream}, 7}, [](StageRank& rank) {
        uint64_t call = 0;
        const uint64_t piece = rank.stages.piece_bytes();
        for (const uint64_t bytes :
             {uint64_t{1}, uint64_t{777}, piece, piece + 5, 5 * piece + 3, uint64_t{300'001}})
          for (const bool in_place : {false, true})
            check_all_gather(rank, ++call, bytes, Dtype::kUint8, in_place);
        check_all_gather(rank, ++call, 90'000, Dtype::kBfloat16, false);
        check_all_gather(rank, ++call, 0, Dtype::kFloat32, false);
      });
}

TEST(Stages, SumNodeByNodeInAllTypes) {
  for (const NodeMap& map : kSumMaps)
    run_stages({map, {256_KiB, false}, 3}, [](StageRank& rank) {
      uint64_t call = 100;
      for (const Dtype dtype : kAllDtypes)
        for (const RedOp op : kAllRedOps)
          check_reduce_scatter(rank, ++call, 333, dtype, op, op == RedOp::kAvg);
    });
}

TEST(Stages, LongSumsGoPieceByPiece) {
  for (const bool is_on_one_stream : {false, true})
    run_stages({{2, 2}, {256_KiB, is_on_one_stream}, 5}, [](StageRank& rank) {
      uint64_t call = 200;
      const uint64_t piece = rank.stages.piece_bytes();
      for (const uint64_t count : {piece / 4, piece / 4 + 1, piece + 17, 2 * piece})
        for (const bool in_place : {false, true})
          check_reduce_scatter(rank, ++call, count, Dtype::kFloat32, RedOp::kAvg, in_place);
      check_reduce_scatter(rank, ++call, piece, Dtype::kBfloat16, RedOp::kSum, false);
      check_reduce_scatter(rank, ++call, piece, Dtype::kInt64, RedOp::kMax, true);
    });
}

// Steps end between pieces, within them and at their ends; in place a step's result lies on its operand.
TEST(Stages, AnAverageGoesByWhatItAdds) {
  for (const bool is_exact : {false, true}) {
    StageTerms terms{256_KiB, false};
    terms.is_exact = is_exact;
    terms.most_nothing_bytes = 1_KiB;
    run_stages({{2, 2}, terms, 9}, [&](StageRank& rank) {
      uint64_t call = 600;
      const uint64_t piece = rank.stages.piece_bytes();
      for (const Dtype dtype : kAllDtypes)
        for (const uint64_t count : {uint64_t{333}, uint64_t{1024}, piece / 8 + 129})
          check_reduce_scatter(rank, ++call, count, dtype, RedOp::kAvg, count == 1024,
                               is_exact ? exact_sum_of : sum_of);
    });
  }
}

// What is left of 128 MiB is NCCL's, for its part of the rail.
TEST(Stages, WhatTheyTakeIsBounded) {
  for (int nodes = 2; nodes <= 16; ++nodes)
    for (int local = 2; local <= 8; ++local) {
      const StageScratch sizes = scratch_of({nodes, local}, {});
      EXPECT_LE(sizes.bytes, 96_MiB) << nodes << " x " << local;
      EXPECT_GE(sizes.piece_bytes, 1_MiB) << nodes << " x " << local;
      EXPECT_EQ(sizes.piece_bytes % 512, 0U);
    }
  EXPECT_EQ(scratch_of({2, 2}, {}).piece_bytes, 8_MiB);
  EXPECT_EQ(scratch_of({2, 2}, {}).bytes, 7 * 8_MiB + 5_MiB);
  const StageScratch many = scratch_of({4, 8}, {});
  EXPECT_EQ(many.bytes, many.piece_bytes * 21) << "no average, and nothing that it adds";
}

StageTerms exact_terms(uint64_t scratch_bytes, bool is_on_one_stream = false) {
  StageTerms terms;
  terms.most_scratch_bytes = scratch_bytes;
  terms.is_on_one_stream = is_on_one_stream;
  terms.is_exact = true;
  return terms;
}

TEST(Stages, ExactSumsRoundOnce) {
  for (const NodeMap& map : kSumMaps)
    run_stages({map, exact_terms(256_KiB), 3}, [](StageRank& rank) {
      uint64_t call = 300;
      for (const Dtype dtype : kAllDtypes)
        for (const RedOp op : kAllRedOps)
          check_reduce_scatter(rank, ++call, 333, dtype, op, op == RedOp::kAvg, exact_sum_of);
    });
}

TEST(Stages, LongExactSumsGoPieceByPiece) {
  for (const bool is_on_one_stream : {false, true})
    run_stages({{2, 2}, exact_terms(256_KiB, is_on_one_stream), 5}, [](StageRank& rank) {
      uint64_t call = 400;
      const uint64_t piece = rank.stages.piece_bytes();
      for (const uint64_t count : {piece / 4, piece / 4 + 1, piece + 17})
        for (const bool in_place : {false, true})
          check_reduce_scatter(rank, ++call, count, Dtype::kBfloat16, RedOp::kAvg, in_place,
                               exact_sum_of);
      check_reduce_scatter(rank, ++call, piece, Dtype::kFloat8E4m3, RedOp::kSum, true,
                           exact_sum_of);
    });
}

// What it is for: bfloat16's 1 + 2^-8 + 2^-8 is 1 + 2^-7, which no node's partial of 1 + 2^-8 shows.
TEST(Stages, AnExactSumKeepsWhatPartialsInTheTypeLose) {
  for (const bool is_exact : {false, true}) {
    StageTerms terms;
    terms.is_exact = is_exact;
    run_stages({{2, 2}, terms, 0}, [&](StageRank& rank) {
      constexpr float kOperands[] = {1.0F, 0x1p-8F, 0x1p-8F, 0.0F};
      GuardedMemory send(rank.gpu.cuda, 8), recv(rank.gpu.cuda, 2);
      const std::vector<float> own(4, kOperands[rank.rank]);
      narrow(own.data(), send.data(), 4, Dtype::kBfloat16);
      const Status status =
          rank.stages.reduce_scatter(send.get(), recv.get(), 1, Dtype::kBfloat16, RedOp::kSum, {});
      ASSERT_TRUE(status.ok()) << status.to_string();
      float sum = 0;
      widen(recv.data(), &sum, 1, Dtype::kBfloat16);
      EXPECT_EQ(sum, is_exact ? 1.0F + 0x1p-7F : 1.0F);
    });
  }
}

// -0 is the sum of all ranks' -0, and what an average adds for the rest must leave it so.
TEST(Stages, AnAverageKeepsTheSignOfZero) {
  run_stages({{2, 2}, {}, 0}, [](StageRank& rank) {
    const std::vector<float> own(400, -0.0F);
    GuardedMemory send(rank.gpu.cuda, 1600), recv(rank.gpu.cuda, 400);
    std::memcpy(send.data(), own.data(), 1600);
    const Status status =
        rank.stages.reduce_scatter(send.get(), recv.get(), 100, Dtype::kFloat32, RedOp::kAvg, {});
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(std::memcmp(recv.data(), own.data(), 400), 0);
  });
}

// (k - 1) / (k g) of an all_gather's bytes leave each rank: schedule.h's promise.
TEST(Stages, BytesOnTheRailAreTheModels) {
  run_stages({{2, 2}, {1_MiB, false}, 0}, [](StageRank& rank) {
    check_all_gather(rank, 1, 400'000, Dtype::kUint8, false);
    EXPECT_EQ(rank.rail.sent_bytes(), 400'000U);
    check_reduce_scatter(rank, 2, 100'000, Dtype::kFloat32, RedOp::kSum, false);
    EXPECT_EQ(rank.rail.sent_bytes(), 800'000U);
  });
}

// Random calls in one order on all ranks, beside rails that are late.
TEST(Stages, RandomPrograms) {
  for (uint64_t seed = 1; seed <= (kIsSanitized ? 2 : 4); ++seed)
    run_stages({seed % 2 == 0 ? NodeMap{2, 2} : NodeMap{4, 2}, {512_KiB, seed % 4 == 3}, seed},
               [&](StageRank& rank) {
                 std::minstd_rand random(static_cast<unsigned>(seed));
                 for (uint64_t call = 0; call < 12; ++call) {
                   const uint64_t count = 1 + random() % (random() % 3 == 0 ? 60'000 : 900);
                   const Dtype dtype = kAllDtypes[random() % std::size(kAllDtypes)];
                   const RedOp op = kAllRedOps[random() % std::size(kAllRedOps)];
                   const bool in_place = random() % 2 == 0;
                   if (random() % 2 == 0)
                     check_all_gather(rank, call, count, dtype, in_place);
                   else
                     check_reduce_scatter(rank, call, count, dtype, op, in_place);
                 }
               });
}

// A rail that fails at any call: an error on its ranks at once, and at the next call; nobody hangs.
TEST(Stages, ARailThatFailsIsAnErrorOnItsRanks) {
  for (uint64_t nth = 0; nth < 3; ++nth)
    run_stages({{2, 2}, {}, 0, 2000}, [&](StageRank& rank) {
      if (rank.rank == 0) rank.rail.fail_at(nth);
      GuardedMemory send(rank.gpu.cuda, 4000), recv(rank.gpu.cuda, 16000);
      const int64_t began_ns = now_ns();
      Status status;
      for (int call = 0; call < 5 && status.ok(); ++call) {
        status = rank.stages.all_gather(send.get(), recv.get(), 4000, Dtype::kUint8, {});
        if (rank.map.local_of(rank.rank) == 1 && !status.ok()) break;
        if (rank.map.local_of(rank.rank) == 1 && call == static_cast<int>(nth)) break;
      }
      if (rank.map.local_of(rank.rank) == 0) {
        EXPECT_FALSE(status.ok());
        EXPECT_FALSE(rank.stages.all_gather(send.get(), recv.get(), 4, Dtype::kUint8, {}).ok());
      }
      rank.gpu.comm.abort("the test's rail failed");  // the others of the node wait for it
      EXPECT_LT(now_ns() - began_ns, 30_s);
    });
}

// The others have gone on by then: on the rail this rank's next receive would be given what they sent
// in that call. After a refused argument a comm goes on, so it must not be told as one.
TEST(Stages, WhatIsRefusedAmidACallEndsTheComm) {
  run_stages({{2, 2}, {}, 0, 2000}, [](StageRank& rank) {
    GuardedMemory send(rank.gpu.cuda, 4000), recv(rank.gpu.cuda, 16000),
        other(rank.gpu.cuda, 16000);
    ASSERT_TRUE(rank.gpu.device.registrations().add(recv.get(), recv.bytes()).ok());
    const bool is_refused = rank.rank == 0;
    if (is_refused)
      rank.gpu.cuda.fail("pointer_facts", 0, invalid_argument("it was freed, and allocated anew"));
    const sys::DevicePtr to = is_refused ? recv.get() : other.get();
    const Status status = rank.stages.all_gather(send.get(), to, 4000, Dtype::kUint8, {});
    if (is_refused) {
      EXPECT_EQ(rank.rail.num_calls(), 1U) << "the others have what it sent";
      EXPECT_EQ(status.code(), Code::kUnavailable) << status.to_string();
      rank.gpu.comm.state().group->report(status);  // as on_device() does: rank 1 waits for it
    }
  });
}

// It is one on every rank, and of the program's making: nothing of it lies on the rail.
TEST(Stages, ACallInAnInvalidCaptureTouchesNoRail) {
  run_stages({{2, 2}, {}, 0}, [](StageRank& rank) {
    auto& cuda = static_cast<test::GraphCuda&>(rank.gpu.cuda);
    GuardedMemory send(cuda, 400), recv(cuda, 400);
    const sys::Stream stream = fresh_stream(cuda);
    cuda.begin_capture(stream);
    cuda.invalidate_capture(stream);
    const Status gathered =
        rank.stages.all_gather(send.get(), recv.get(), 100, Dtype::kUint8, stream);
    const Status summed =
        rank.stages.reduce_scatter(send.get(), recv.get(), 100, Dtype::kUint8, RedOp::kSum, stream);
    (void)cuda.end_capture(stream);
    EXPECT_EQ(gathered.code(), Code::kInvalidArgument) << gathered.to_string();
    EXPECT_EQ(summed.code(), Code::kInvalidArgument) << summed.to_string();
    EXPECT_EQ(rank.rail.num_calls(), 0U);
    EXPECT_TRUE(cuda.destroy_stream(stream).ok());
  });
}

/// Stages of a rank of run_stages(), on a rail that looks, and streams for their calls.
struct Watched {
  explicit Watched(StageRank& rank)
      : cuda(static_cast<WaitingCuda&>(rank.gpu.cuda)),
        rail(rank.rail, cuda),
        stages(Stages::make(rank.gpu.device, rail, rank.map, rank.map.node_of(rank.rank),
                            {256_KiB, false})
                   .value()),
        send(cuda, stages->piece_bytes() + 512),
        recv(cuda, 4 * (stages->piece_bytes() + 512)) {
    for (sys::Stream& stream : streams) stream = fresh_stream(cuda);
  }
  ~Watched() {
    for (const sys::Stream stream : streams) EXPECT_TRUE(cuda.destroy_stream(stream).ok());
  }
  /// A long one ends with copies out of the scratch.
  void gather(sys::Stream stream, bool is_long = false) {
    const uint64_t bytes = is_long ? send.bytes() : 64;
    const Status status = stages->all_gather(send.get(), recv.get(), bytes, Dtype::kUint8, stream);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  void meet(sys::Stream stream) {
    const Status status = stages->barrier(stream);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  void expect_behind(const char* what) {
    EXPECT_TRUE(rail.has_looked()) << what;
    EXPECT_EQ(rail.num_missed(), 0U) << what << ": pieces of work that it does not wait for";
  }

  WaitingCuda& cuda;
  WatchedRail rail;
  std::unique_ptr<Stages> stages;
  GuardedMemory send, recv;
  std::array<sys::Stream, 4> streams{};
};

TEST(Stages, CallsOnTwoStreamsKeepTheirOrder) {
  run_stages({{2, 2}, {}, 0}, [](StageRank& rank) {
    Watched of(rank);
    const auto [a, b, captured, d] = of.streams;
    for (const bool has_capture_between : {false, true}) {
      of.gather(a, true);
      if (has_capture_between) {
        of.cuda.begin_capture(captured);
        of.gather(captured);
        (void)of.cuda.end_capture(captured);
      }
      of.rail.watch(b, a);
      of.gather(b);
      of.expect_behind(has_capture_between ? "with a capture between" : "one behind the other");
    }
  });
}

// By barriers, which use no stream but the caller's: one of ours belongs to one capture at a time.
TEST(Stages, CapturesThatTakeTurnsKeepTheirOrder) {
  run_stages({{2, 2}, {}, 0}, [](StageRank& rank) {
    Watched of(rank);
    const auto [first, side, second, eager] = of.streams;
    const sys::OwnedEvent fork =
        sys::own<sys::OwnedEvent>(of.cuda, of.cuda.create_event(sys::EventTiming::kOff)).value();
    of.cuda.begin_capture(first);
    ASSERT_TRUE(of.cuda.record(fork.get(), first).ok());
    ASSERT_TRUE(of.cuda.wait_event(side, fork.get()).ok());
    of.meet(first);
    of.cuda.begin_capture(second);
    of.meet(second);
    of.meet(eager);
    of.rail.watch(side, first);
    of.meet(side);
    of.expect_behind("the same graph's, on two streams");
    (void)of.cuda.end_capture(second);
    (void)of.cuda.end_capture(first);
  });
}

// It writes a word for each node to where a long all_gather before it may still have its last pieces.
TEST(Stages, ABarrierIsOneOfTheCallsInOrder) {
  run_stages({{2, 2}, {}, 0}, [](StageRank& rank) {
    Watched of(rank);
    const auto [a, b, c, d] = of.streams;
    of.gather(a, true);
    of.rail.watch(b, a);
    of.meet(b);
    of.expect_behind("a barrier");
    of.rail.watch(c, b);
    of.gather(c);
    of.expect_behind("a call behind a barrier");
  });
}

// A captured call says nothing of the eager ones before it: their scratch was given back under them.
TEST(Stages, AreFinishedWhenEagerCallsAre) {
  run_stages({{2, 2}, {}, 0}, [](StageRank& rank) {
    Watched of(rank);
    const auto [eager, captured, c, d] = of.streams;
    EXPECT_TRUE(of.stages->is_finished());
    of.gather(eager);
    EXPECT_TRUE(of.stages->is_finished());
    of.cuda.begin_capture(captured);
    of.gather(captured);
    (void)of.cuda.end_capture(captured);
    EXPECT_TRUE(of.stages->is_finished());
    of.cuda.hold(eager);
    EXPECT_FALSE(of.stages->is_finished());
    of.cuda.hold({});
  });
}

}  // namespace
}  // namespace braid::coll::nodes
