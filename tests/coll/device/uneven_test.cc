// all_to_all with counts per peer on the memory of fake GPUs: every byte, ranks with different
// numbers of rounds, graphs, and counts that do not fit.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/sanitizer.h"
#include "base/units.h"
#include "coll/device/collectives.h"
#include "coll/device/entry.h"
#include "support/gpu_ranks.h"
#include "support/graph_cuda.h"
#include "support/ordered_cuda.h"
#include "support/tensors.h"

namespace braid::coll::device {
namespace {

using test::GpuRank;
using test::GuardedMemory;

/// [from][to]: elements.
using Table = std::vector<std::vector<uint64_t>>;

struct UnevenCase {
  const char* name;
  Table counts;
  Dtype dtype = Dtype::kUint8;
  double host_share = 0;
  uint64_t offset_bytes = 0;
};

void PrintTo(const UnevenCase& c, std::ostream* os) { *os << c.name; }

/// Bytes without a period; every rank and round reads them from a place of its own.
const std::byte* uneven_bytes(size_t rank, uint64_t round) {
  static const std::vector<uint64_t> words = [] {
    std::vector<uint64_t> made((24_MiB) / sizeof(uint64_t));
    for (uint64_t i = 0; i < made.size(); ++i) made[i] = test::mixed(2, 0, i);
    return made;
  }();
  return reinterpret_cast<const std::byte*>(words.data()) + 8 * (rank * 8209 + round % 64 * 127);
}

/// One rank's call: its blocks by its row of the table, its results by its column.
class UnevenCaller {
 public:
  UnevenCaller(GpuRank& rank, const Table& counts, Dtype dtype, uint64_t offset_bytes)
      : rank_(rank),
        counts_(counts),
        dtype_(dtype),
        sent_(counts[own()]),
        received_(column(counts, own())),
        send_(rank.cuda, bytes_of(sent_), offset_bytes),
        recv_(rank.cuda, bytes_of(received_), offset_bytes) {}

  void set_round(uint64_t round) {
    round_ = round;
    if (send_.bytes() > 0) std::memcpy(send_.data(), uneven_bytes(own(), round), send_.bytes());
    if (recv_.bytes() > 0) std::memset(recv_.data(), 0xee, recv_.bytes());
  }
  Status call(comm::Device& device, sys::Stream stream) {
    return all_to_all_v(device, send_.get(), sent_, recv_.get(), received_, dtype_, stream);
  }
  /// What a rank does that forgot that blocks are uneven.
  Status call_even(comm::Device& device, uint64_t count) {
    return all_to_all(device, send_.get(), recv_.get(), count, dtype_, {});
  }
  void check() {
    uint64_t at = 0;
    for (size_t from = 0; from < counts_.size(); ++from) {
      uint64_t begin = 0;
      for (size_t to = 0; to < own(); ++to) begin += counts_[from][to] * dtype_bytes(dtype_);
      const uint64_t bytes = received_[from] * dtype_bytes(dtype_);
      const std::byte* const want = uneven_bytes(from, round_) + begin;
      const bool is_right = bytes == 0 || std::memcmp(recv_.data() + at, want, bytes) == 0;
      EXPECT_TRUE(is_right) << "rank " << own() << ": bytes from rank " << from;
      at += bytes;
    }
    EXPECT_TRUE(send_.is_guarded() && recv_.is_guarded()) << "rank " << own();
  }
  std::vector<uint64_t>& sent() { return sent_; }
  std::vector<uint64_t>& received() { return received_; }

 private:
  size_t own() const { return static_cast<size_t>(rank_.rank()); }
  static std::vector<uint64_t> column(const Table& counts, size_t to) {
    std::vector<uint64_t> found;
    for (const auto& row : counts) found.push_back(row[to]);
    return found;
  }
  uint64_t bytes_of(const std::vector<uint64_t>& counts) const {
    uint64_t sum = 0;
    for (const uint64_t count : counts) sum += count;
    return sum * dtype_bytes(dtype_);
  }

  GpuRank& rank_;
  const Table& counts_;
  const Dtype dtype_;
  std::vector<uint64_t> sent_, received_;
  GuardedMemory send_, recv_;
  uint64_t round_ = 0;
};

sys::OwnedStream uneven_stream(sys::Cuda& cuda) {
  return sys::own<sys::OwnedStream>(cuda, cuda.create_stream(sys::StreamPriority::kNormal)).value();
}

class DeviceUneven : public testing::TestWithParam<UnevenCase> {};

// Several calls in a row, on two streams, with an even one between: what one leaves in the scratch
// is not overwritten before it is taken out, and the other way round.
TEST_P(DeviceUneven, EveryByteIsRight) {
  const UnevenCase& c = GetParam();
  const auto size = static_cast<int>(c.counts.size());
  test::OrderedCuda cuda(size);
  test::define_team_kernels(cuda);
  test::run_gpus(size, cuda, {}, [&](GpuRank& rank) {
    rank.device.links().main().shares().set_tuned(plan::Op::kAllToAll, c.host_share);
    UnevenCaller caller(rank, c.counts, c.dtype, c.offset_bytes);
    GuardedMemory small(cuda, 300), smalls(cuda, 300 * static_cast<uint64_t>(size));
    const sys::OwnedStream streams[] = {uneven_stream(cuda), uneven_stream(cuda)};
    for (uint64_t round = 0; round < 3; ++round) {
      caller.set_round(round);
      rank.all.arrive_and_wait();
      const sys::Stream stream = streams[round % 2].get();
      const Status status = on_device(rank.comm, rank.rank(),
                                      [&](comm::Device& d) { return caller.call(d, stream); });
      EXPECT_TRUE(status.ok()) << status.to_string();
      cuda.expect_joined(stream);
      rank.all.arrive_and_wait();
      caller.check();
      const Status even = on_device(rank.comm, rank.rank(), [&](comm::Device& d) {
        return all_gather(d, small.get(), smalls.get(), 300, Dtype::kUint8, stream);
      });
      EXPECT_TRUE(even.ok()) << even.to_string();
    }
    EXPECT_TRUE(rank.device.faults().status().ok()) << rank.device.faults().status().to_string();
    rank.all.arrive_and_wait();
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

// 16 MiB of scratch: pieces of 4 MiB with two ranks, 2.67 with three, 2 with four; two slots.
constexpr uint64_t kMi = 1 << 20;
constexpr uint64_t kShort = nvlink::short_bytes(3);  // elements of a byte
INSTANTIATE_TEST_SUITE_P(
    Tables, DeviceUneven,
    testing::Values(
        UnevenCase{"alone", {{1000}}, Dtype::kFloat32}, UnevenCase{"nothing", {{0, 0}, {0, 0}}},
        UnevenCase{"one way", {{0, 5}, {0, 0}}},
        UnevenCase{"odd", {{3, 1001, 0}, {17, 0, 40'003}, {1, 5, 7}}, Dtype::kFloat64, 0, 1},
        UnevenCase{
            "about the longest short block",
            {{kShort, kShort, kShort + 1}, {0, kShort + 1, kShort}, {5, kShort - 1, kShort + 1}},
            Dtype::kUint8,
            0,
            1},
        UnevenCase{"nobody but two", {{0, 0, 9 * kMi}, {0, 0, 0}, {5, 0, 0}}},
        UnevenCase{"one rank to all",
                   {{9, 11 * kMi, 1, 5 * kMi + 3}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}},
                   Dtype::kUint8,
                   0,
                   3},
        UnevenCase{"all ranks to one", {{0, 0, 3 * kMi}, {0, 0, 13 * kMi + 1}, {0, 0, 2}}},
        UnevenCase{"other rounds for all",
                   {{kMi, 5 * kMi, 100, 0},
                    {7 * kMi + 5, 0, kMi, 1},
                    {0, 9 * kMi, 8, 3 * kMi},
                    {2 * kMi, 4 * kMi + 1, 2 * kMi - 1, 77}}},
        UnevenCase{"over the host",
                   {{16, 4 * kMi, 6 * kMi}, {4 * kMi + 16, 0, 1}, {5 * kMi + 8, 4 * kMi, 9}},
                   Dtype::kUint8,
                   0.3},
        UnevenCase{"all over the host", {{0, 2 * kMi}, {2 * kMi + 8, 5}}, Dtype::kInt16, 1, 2}));

// What a replay does must not depend on how many calls were before it.
TEST(DeviceUnevenGraphs, AreReplayedAmongOtherCalls) {
  const Table counts = {{5, 9 * kMi, 100}, {3 * kMi, 0, 0}, {0, kMi + 1, 8}};
  const Table others = {{0, 100, 6 * kMi}, {1, 1, 1}, {5 * kMi, 0, 0}};
  test::GraphCuda cuda(3);
  test::define_team_kernels(cuda);
  test::run_gpus(3, cuda, {}, [&](GpuRank& rank) {
    rank.device.links().main().shares().set_tuned(plan::Op::kAllToAll, 0.2);
    UnevenCaller graphed(rank, counts, Dtype::kUint8, 0), eager(rank, others, Dtype::kUint8, 1);
    const sys::OwnedStream one = uneven_stream(cuda), other = uneven_stream(cuda);
    cuda.begin_capture(one.get());
    const Status captured = graphed.call(rank.device, one.get());
    EXPECT_TRUE(captured.ok()) << captured.to_string();
    const test::Graph graph = cuda.end_capture(one.get());
    for (uint64_t round = 0; round < 3; ++round) {
      graphed.set_round(round);
      eager.set_round(round + 50);
      rank.all.arrive_and_wait();
      const Status replayed = test::GraphCuda::replay(graph);
      EXPECT_TRUE(replayed.ok()) << replayed.to_string();
      const Status called = eager.call(rank.device, other.get());
      EXPECT_TRUE(called.ok()) << called.to_string();
      rank.all.arrive_and_wait();
      graphed.check();
      eager.check();
    }
    EXPECT_TRUE(rank.device.faults().status().ok()) << rank.device.faults().status().to_string();
    rank.all.arrive_and_wait();
  });
}

/// Every rank makes a call that is its own idea of one, and learns that ideas differ.
void expect_disagreement(const std::function<Status(comm::Device&, UnevenCaller&)>& call) {
  if (kIsThreadSanitized) GTEST_SKIP() << "skipped: a failed call races with its peers by design";
  const Table counts(3, std::vector<uint64_t>(3, 1000));
  sys::FakeCuda cuda(3);
  test::define_team_kernels(cuda);
  test::run_gpus(3, cuda, {}, [&](GpuRank& rank) {
    UnevenCaller caller(rank, counts, Dtype::kUint8, 0);
    const int64_t start_ns = now_ns();
    (void)on_device(rank.comm, rank.rank(), [&](comm::Device& d) { return call(d, caller); });
    const Deadline deadline = Deadline::after_ns(10'000'000'000);
    while (rank.device.faults().status().ok() && !deadline.passed()) std::this_thread::yield();
    EXPECT_EQ(rank.device.faults().status().code(), Code::kInvalidArgument)
        << rank.device.faults().status().to_string();
    EXPECT_LT(now_ns() - start_ns, 5'000'000'000);
    rank.all.arrive_and_wait();
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

TEST(DeviceUnevenFaults, CountsThatDoNotFitAreTroubleEverywhere) {
  for (const bool sends : {true, false})
    expect_disagreement([&](comm::Device& device, UnevenCaller& caller) {
      if (device.rank() == 0) --(sends ? caller.sent() : caller.received())[2];
      return caller.call(device, {});
    });
}

TEST(DeviceUnevenFaults, ABlockForOneselfThatDoesNotFitIsTroubleEverywhere) {
  expect_disagreement([](comm::Device& device, UnevenCaller& caller) {
    if (device.rank() == 1) caller.sent()[1] = 999;
    return caller.call(device, {});
  });
}

TEST(DeviceUnevenFaults, AnotherCallIsTroubleEverywhere) {
  expect_disagreement([](comm::Device& device, UnevenCaller& caller) {
    if (device.rank() != 2) return caller.call(device, {});
    return caller.call_even(device, 1000);
  });
}

TEST(DeviceUnevenFaults, WhatOneRankCanSeeIsRefusedAtOnce) {
  sys::FakeCuda cuda(2);
  test::define_team_kernels(cuda);
  test::run_gpus(2, cuda, {}, [&](GpuRank& rank) {
    GuardedMemory memory(cuda, 1000);
    const auto call = [&](const std::vector<uint64_t>& sent, const std::vector<uint64_t>& received,
                          uint64_t apart) {
      return on_device(rank.comm, rank.rank(), [&](comm::Device& d) {
        return all_to_all_v(d, memory.get(), sent, memory.get() + apart, received, Dtype::kUint8,
                            {});
      });
    };
    EXPECT_EQ(call({1, 1, 1}, {1, 1}, 100).code(), Code::kInvalidArgument);
    EXPECT_EQ(call({1, 1}, {UINT64_MAX, 1}, 100).code(), Code::kInvalidArgument);
    const Status overlaps = call({50, 51}, {60, 60}, 100);
    EXPECT_EQ(overlaps.code(), Code::kInvalidArgument);
    EXPECT_NE(overlaps.message().find("overlap"), std::string::npos) << overlaps.to_string();
    EXPECT_TRUE(call({50, 50}, {50, 50}, 100).ok()) << "the comm goes on";
    rank.all.arrive_and_wait();
  });
}

}  // namespace
}  // namespace braid::coll::device
