// The five collectives on the memory of fake GPUs: every byte of every result, and every guard
// around it. What is judged is the host's part: which copies, sums, barriers and flows it enqueues.
#include "coll/device/collectives.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "coll/device/entry.h"
#include "coll/device/explain.h"
#include "coll/device/fake_sums.h"
#include "support/fake_relay.h"
#include "support/gpu_ranks.h"
#include "support/ordered_cuda.h"
#include "support/segmented_memory.h"
#include "support/tensors.h"

namespace braid::coll::device {
namespace {

using test::GpuRank;
using test::GuardedMemory;

struct Case {
  int size;
  Dtype dtype;
  RedOp redop;
  uint64_t count;  // of a block; an all-reduce or broadcast has size * count
  double host_share = 0;
  uint64_t offset_bytes = 0;  // of every buffer from an aligned address
  int odd_rank = -1;          // only this rank's are off by that; -1: all
  int rdma_percent = 0;       // through sockets on loopback, where libfabric is there
  bool is_held = false;       // to a rate: a broadcast is pushed by copy engines then
  bool is_forced = false;     // the host share, which else follows what calls measure
};

void PrintTo(const Case& c, std::ostream* os) {
  *os << c.size << " ranks, " << c.count << " " << dtype_name(c.dtype) << " " << redop_name(c.redop)
      << ", host share " << c.host_share << ", offset " << c.offset_bytes << " of " << c.odd_rank
      << ", rdma " << c.rdma_percent << " %" << (c.is_held ? ", held" : "")
      << (c.is_forced ? ", forced" : "");
}

/// Bytes without a period; every rank and call reads them from a place of its own.
const std::byte* pattern(int rank, uint64_t call) {
  static const std::vector<uint64_t> words = [] {
    std::vector<uint64_t> made((26_MiB) / sizeof(uint64_t));
    for (uint64_t i = 0; i < made.size(); ++i) made[i] = test::mixed(1, 0, i);
    return made;
  }();
  return reinterpret_cast<const std::byte*>(words.data()) +
         8 * (static_cast<uint64_t>(rank) * 8209 + call % 64 * 127);
}

std::vector<std::byte> reduced(const Case& c, uint64_t call) {
  const uint64_t count = c.count * static_cast<uint64_t>(c.size);
  std::vector<std::byte> sum(count * dtype_bytes(c.dtype));
  std::vector<const void*> operands;
  for (int r = 0; r < c.size; ++r) operands.push_back(pattern(r, call));
  if (count > 0) reduce(operands, sum.data(), count, c.dtype, c.redop);
  return sum;
}

/// The calls of one rank, each checked.
class Caller {
 public:
  static constexpr uint64_t kSumCall = 63;  // sums have one input, so that one result does for all

  Caller(GpuRank& rank, test::OrderedCuda& cuda, const Case& c, const std::vector<std::byte>& sums)
      : rank_(rank),
        cuda_(cuda),
        c_(c),
        sums_(sums),
        block_(c.count * dtype_bytes(c.dtype)),
        all_(block_ * static_cast<uint64_t>(c.size)),
        send_(rank.cuda, all_, offset()),
        recv_(rank.cuda, all_, offset()) {
    for (auto& stream : streams_)
      stream = sys::own<sys::OwnedStream>(rank.cuda,
                                          rank.cuda.create_stream(sys::StreamPriority::kNormal))
                   .value();
  }

  /// The host link carries a part of the first two alone.
  void all_ops(bool in_place) {
    all_gather(in_place);
    all_to_all(in_place);
    all_reduce(in_place);
    all_reduce(
        in_place);  // where nobody uses the scratch any longer it does not wait for a barrier
    reduce_scatter(in_place);
    const int step = c_.size > 4 ? c_.size - 1 : 1;  // of many roots the first and the last
    for (int root = 0; root < c_.size; root += step) broadcast(root, in_place);
  }

  void register_recv() {
    if (all_ == 0) return;
    const Status status = rank_.device.registrations().add(recv_.get(), all_);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  void unregister_recv() {
    if (all_ == 0) return;
    const Status status = rank_.device.registrations().remove(recv_.get());
    EXPECT_TRUE(status.ok()) << status.to_string();
  }

 private:
  uint64_t offset() const {
    return c_.odd_rank < 0 || c_.odd_rank == rank_.rank() ? c_.offset_bytes : 0;
  }
  uint64_t at(int rank) const { return static_cast<uint64_t>(rank) * block_; }
  int me() const { return rank_.rank(); }

  using Function = std::function<Status(comm::Device&, sys::DevicePtr send, sys::Stream)>;

  /// `input` of `bytes` lies in `send_`, or in place at recv_ + place.
  void run(const char* name, bool in_place, uint64_t place, const std::byte* input, uint64_t bytes,
           const Function& function) {
    name_ = std::string(name) + (in_place ? " in place" : "");
    SCOPED_TRACE(name_);
    if (all_ > 0) std::memset(recv_.data(), 0xee, all_);
    std::byte* from = in_place ? recv_.data() + place : send_.data();
    if (bytes > 0) std::memcpy(from, input, bytes);
    rank_.all.arrive_and_wait();
    const sys::Stream stream = streams_[num_calls_++ % streams_.size()].get();
    const Status status = on_device(rank_.comm, me(), [&](comm::Device& device) {
      return function(device, reinterpret_cast<sys::DevicePtr>(from), stream);
    });
    EXPECT_TRUE(status.ok()) << name_ << ": " << status.to_string();
    cuda_.expect_joined(stream);
    rank_.all.arrive_and_wait();
    const bool is_input_intact = in_place || bytes == 0 || std::memcmp(from, input, bytes) == 0;
    EXPECT_TRUE(is_input_intact) << name_ << " wrote its input";
    EXPECT_TRUE(send_.is_guarded() && recv_.is_guarded()) << name_;
  }

  void expect(uint64_t place, const std::byte* want, uint64_t bytes) {
    const std::byte* got = recv_.data() + place;
    if (bytes == 0 || std::memcmp(got, want, bytes) == 0) return;
    uint64_t i = 0;
    while (got[i] == want[i]) ++i;
    ADD_FAILURE() << name_ << ": rank " << me() << ": byte " << place + i << " of " << all_
                  << " is wrong";
  }

  void all_gather(bool in_place) {
    const uint64_t call = num_calls_;
    run("all_gather", in_place, at(me()), pattern(me(), call), block_,
        [&](comm::Device& device, sys::DevicePtr send, sys::Stream stream) {
          return device::all_gather(device, send, recv_.get(), c_.count, c_.dtype, stream);
        });
    for (int r = 0; r < c_.size; ++r) expect(at(r), pattern(r, call), block_);
  }
  void all_to_all(bool in_place) {
    const uint64_t call = num_calls_;
    run("all_to_all", in_place, 0, pattern(me(), call), all_,
        [&](comm::Device& device, sys::DevicePtr send, sys::Stream stream) {
          return device::all_to_all(device, send, recv_.get(), c_.count, c_.dtype, stream);
        });
    for (int r = 0; r < c_.size; ++r) expect(at(r), pattern(r, call) + at(me()), block_);
  }
  // Sums have the same input in every call: what is left of the last one must not pass for this
  // one's.
  void spoil_scratch() {
    std::memset(reinterpret_cast<void*>(rank_.device.arena().scratch().at(me())), 0x5c,
                rank_.device.arena().scratch_bytes());
  }

  void all_reduce(bool in_place) {
    spoil_scratch();
    run("all_reduce", in_place, 0, pattern(me(), kSumCall), all_,
        [&](comm::Device& device, sys::DevicePtr send, sys::Stream stream) {
          return device::all_reduce(device, send, recv_.get(),
                                    c_.count * static_cast<uint64_t>(c_.size), c_.dtype, c_.redop,
                                    stream);
        });
    expect(0, sums_.data(), all_);
  }
  void reduce_scatter(bool in_place) {
    spoil_scratch();
    const uint64_t place = in_place ? at(me()) : 0;
    run("reduce_scatter", in_place, 0, pattern(me(), kSumCall), all_,
        [&](comm::Device& device, sys::DevicePtr send, sys::Stream stream) {
          return device::reduce_scatter(device, send, recv_.get() + place, c_.count, c_.dtype,
                                        c_.redop, stream);
        });
    expect(place, sums_.data() + at(me()), block_);
  }
  void broadcast(int root, bool in_place) {
    const uint64_t call = num_calls_;
    run("broadcast", in_place, 0, pattern(me(), call), all_,
        [&](comm::Device& device, sys::DevicePtr send, sys::Stream stream) {
          const bool reads = in_place || me() == root;  // nobody else's input is looked at
          return device::broadcast(device, reads ? send : 0, recv_.get(),
                                   c_.count * static_cast<uint64_t>(c_.size), c_.dtype, root,
                                   stream);
        });
    expect(0, pattern(root, call), all_);
  }

  GpuRank& rank_;
  test::OrderedCuda& cuda_;
  const Case& c_;
  const std::vector<std::byte>& sums_;
  const uint64_t block_, all_;
  GuardedMemory send_, recv_;
  std::array<sys::OwnedStream, 2> streams_;
  uint64_t num_calls_ = 0;
  std::string name_;
};

class DeviceCollectives : public testing::TestWithParam<Case> {};

// And no piece of work relies on an order that only FakeCuda keeps.
TEST_P(DeviceCollectives, EveryByteIsRight) {
  const Case& c = GetParam();
  test::OrderedCuda cuda(c.size);
  test::define_team_kernels(cuda);
  test::define_relay(cuda);
  test::define_sums(cuda);
  const std::vector<std::byte> sums = reduced(c, Caller::kSumCall);
  if (c.rdma_percent > 0 && !sys::real_fabric().ok())
    GTEST_SKIP() << "skipped: " << sys::real_fabric().status().message();
  const test::Options options = {{"BRAID_GPU_SAMPLE", "1"},
                                 {"BRAID_BALANCE_WINDOW", "1"},
                                 {"BRAID_GPU_SCRATCH", c.is_forced ? "24MiB" : "16MiB"},
                                 {"BRAID_GPU_RDMA", c.rdma_percent > 0 ? "on" : "off"},
                                 {"BRAID_GPU_RDMA_SHARE", std::to_string(c.rdma_percent)},
                                 {"BRAID_LINK_CAP", c.is_held ? "nvlink:1000" : ""}};
  test::run_gpus(c.size, cuda, options, [&](GpuRank& rank) {
    for (const plan::Op op : plan::kAllOps) {
      rank.device.links().main().shares().set_tuned(op, c.host_share);
      if (c.is_forced) rank.device.links().main().shares().force(op, c.host_share);
    }
    EXPECT_TRUE(rank.device.links().start(Deadline::after_ns(20_s)).ok());
    Caller caller(rank, cuda, c, sums);
    caller.all_ops(false);
    caller.all_ops(true);
    caller.register_recv();
    caller.all_ops(false);
    caller.all_ops(true);
    caller.unregister_recv();
    const Status status =
        on_device(rank.comm, rank.rank(), [](comm::Device& d) { return barrier(d, {}); });
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_TRUE(rank.device.faults().status().ok()) << rank.device.faults().status().to_string();
    rank.all.arrive_and_wait();
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

// 16 MiB of scratch (24 where shares are forced): rounds are of 4 MiB with 2 ranks, 2.67 with 3 and
// 2 with 4. An all-reduce of up to 14, 10.5 and 9.3 MiB is one segment, or 28, 21 and 18.7 MiB into
// registered memory; of more, it is in segments of up to two thirds of that, or half of it. A
// broadcast's segments have 16.
constexpr uint64_t kMega = 1 << 20;

// Results in registered memory over several allocations, which end where no block does: in place;
// and through scratch once one of them is another.
TEST(DeviceCalls, ReachMemoryOfSeveralAllocations) {
  sys::FakeCuda cuda(2);
  test::define_team_kernels(cuda);
  test::run_gpus(2, cuda, {}, [&](GpuRank& rank) {
    test::SegmentedMemory memory(cuda, rank.rank(), {1, 2, 1});
    const uint64_t block = memory.bytes() / 2 - 500;
    EXPECT_TRUE(rank.device.registrations().add(memory.get(), memory.bytes()).ok());
    GuardedMemory send(cuda, block);
    for (uint64_t call = 0; call < 3; ++call) {
      std::memcpy(send.data(), pattern(rank.rank(), call), block);
      if (call == 2) memory.remap(1);
      const auto landing = rank.device.registrations().find(memory.get() + 700, 2 * block);
      EXPECT_EQ(landing.value().window != nullptr, call < 2);
      const Explanation told = explain(rank.comm, plan::Op::kAllGather, 2 * block).value();
      EXPECT_EQ(told.registered.bytes, memory.bytes());
      EXPECT_EQ(told.registered.remapped, call < 2 ? 0U : 1U);
      EXPECT_EQ(to_words(told).find("unmapped since") == std::string::npos, call < 2);
      EXPECT_NE(to_json(told).find(R"("registered":{"spans":1,)"), std::string::npos);
      EXPECT_GE(told.memory_bytes, told.scratch_bytes);
      EXPECT_NE(to_words(told).find("of the GPU's memory"), std::string::npos);
      rank.all.arrive_and_wait();
      const Status status = on_device(rank.comm, rank.rank(), [&](comm::Device& d) {
        return all_gather(d, send.get(), memory.get() + 700, block, Dtype::kUint8, {});
      });
      EXPECT_TRUE(status.ok()) << status.to_string();
      rank.all.arrive_and_wait();
      for (int r = 0; r < 2; ++r) {
        const std::byte* got = memory.data() + 700 + static_cast<uint64_t>(r) * block;
        EXPECT_EQ(std::memcmp(got, pattern(r, call), block), 0) << "call " << call;
      }
      rank.all.arrive_and_wait();
    }
    EXPECT_TRUE(rank.device.registrations().remove(memory.get()).ok());
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

// A call once left its own GPU current, and the caller's next allocation went there.
TEST(DeviceCalls, LeaveTheCallersDeviceAsItWas) {
  sys::FakeCuda cuda(2);
  test::define_team_kernels(cuda);
  test::run_gpus(2, cuda, {}, [&](GpuRank& rank) {
    const int other = 1 - rank.rank();
    ASSERT_TRUE(cuda.use_device(other).ok());
    const Status status =
        on_device(rank.comm, rank.rank(), [](comm::Device& d) { return barrier(d, {}); });
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(cuda.current_device().value(), other);
    rank.all.arrive_and_wait();
  });
}

// Only the host's broadcast looked at its root: on a GPU a wrong one was a wait in vain.
TEST(DeviceCalls, RefuseARootThatIsNone) {
  sys::FakeCuda cuda(2);
  test::define_team_kernels(cuda);
  test::run_gpus(2, cuda, {}, [&](GpuRank& rank) {
    for (const int root : {-1, 2}) {
      const Status status = on_device(rank.comm, rank.rank(), [&](comm::Device& d) {
        return broadcast(d, 0, 0, 0, Dtype::kFloat32, root, {});
      });
      EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.to_string();
    }
    rank.all.arrive_and_wait();
  });
}

// Both lie at the same offset in what holds them: peers wrote into the one that they meant, and
// nobody was told.
TEST(DeviceCalls, TwoRegistrationsUsedCrosswiseAreADisagreement) {
  constexpr int kSize = 3;
  constexpr uint64_t kCrossBytes = 1_MiB;
  sys::FakeCuda cuda(kSize);
  test::define_team_kernels(cuda);
  test::run_gpus(kSize, cuda, {{"BRAID_TIMEOUT", "5s"}}, [&](GpuRank& rank) {
    const GuardedMemory send(cuda, kCrossBytes), one(cuda, kSize * kCrossBytes),
        other(cuda, kSize * kCrossBytes);
    ASSERT_TRUE(rank.device.registrations().add(one.get(), one.bytes()).ok());
    ASSERT_TRUE(rank.device.registrations().add(other.get(), other.bytes()).ok());
    rank.all.arrive_and_wait();
    const GuardedMemory& recv = rank.rank() == 2 ? other : one;
    (void)on_device(rank.comm, rank.rank(), [&](comm::Device& d) {
      return all_gather(d, send.get(), recv.get(), kCrossBytes, Dtype::kUint8, {});
    });
    const Deadline deadline = Deadline::after_ns(4'000'000'000);
    while (rank.device.faults().status().ok() && !deadline.passed()) std::this_thread::yield();
    EXPECT_EQ(rank.device.faults().status().code(), Code::kInvalidArgument)
        << rank.device.faults().status().to_string();
    rank.all.arrive_and_wait();
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

TEST(DeviceCalls, ABroadcastThatRanksPassOnIsExplained) {
  for (const int size : {2, 3}) {
    sys::FakeCuda cuda(size);
    test::define_team_kernels(cuda);
    test::run_gpus(size, cuda, {{"BRAID_GPU_DIRECT", "0"}}, [&](GpuRank& rank) {
      const Explanation told = explain(rank.comm, plan::Op::kBroadcast, 64_MiB).value();
      EXPECT_EQ(told.is_relayed, size > 2);
      EXPECT_EQ(to_words(told).find("passed on while they land") != std::string::npos, size > 2);
      EXPECT_FALSE(explain(rank.comm, plan::Op::kAllGather, 64_MiB).value().is_relayed);
      rank.all.arrive_and_wait();
    });
  }
}

TEST(DeviceCalls, AreExplained) {
  sys::FakeCuda cuda(2);
  test::define_team_kernels(cuda);
  const test::Options options = {{"BRAID_GPU_PACKETS", "64KiB"}, {"BRAID_LINK_CAP", "nvlink:147"}};
  test::run_gpus(2, cuda, options, [&](GpuRank& rank) {
    rank.device.links().main().shares().set_tuned(plan::Op::kAllGather, 0.25);
    const auto large = explain(rank.comm, plan::Op::kAllGather, 128_MiB);
    ASSERT_TRUE(large.ok()) << large.status().to_string();
    EXPECT_EQ(large.value().path, Path::kCopyEngines);
    EXPECT_DOUBLE_EQ(large.value().links[1].share, 0.25);
    EXPECT_NE(to_words(large.value()).find("held to 147 GB/s"), std::string::npos);
    EXPECT_NE(to_json(large.value()).find(R"("path":"copy engines")"), std::string::npos);
    EXPECT_FALSE(explain(rank.comm, plan::Op::kAllGather, 0).value().links[1].share > 0);
    // In segments, each of which has the share: of the whole it would be less than the scratch has
    // room for.
    rank.device.links().main().shares().set_tuned(plan::Op::kAllReduce, 0.125);
    EXPECT_NEAR(explain(rank.comm, plan::Op::kAllReduce, 8_GiB).value().links[1].share, 0.125,
                0.005);
    EXPECT_NE(rank.comm.health_json().find(R"("gpu":{"ordinal":)"), std::string::npos);
    rank.all.arrive_and_wait();
  });
}

// 9 MB in pieces of 4 MiB at 0.3 GB/s take 30 ms; two calls in a row twice as much.
TEST(DeviceCalls, AreHeldToTheLinkCap) {
  constexpr uint64_t kBytes = 9'000'000;
  sys::FakeCuda cuda(2);
  test::define_team_kernels(cuda);
  test::run_gpus(2, cuda, {{"BRAID_LINK_CAP", "nvlink:0.3"}}, [&](GpuRank& rank) {
    GuardedMemory send(cuda, kBytes), recv(cuda, 2 * kBytes);
    std::memcpy(send.data(), pattern(rank.rank(), 0), kBytes);
    const int64_t start_ns = now_ns();
    for (int call = 0; call < 2; ++call) {
      const Status status = on_device(rank.comm, rank.rank(), [&](comm::Device& d) {
        return all_gather(d, send.get(), recv.get(), kBytes, Dtype::kUint8, {});
      });
      EXPECT_TRUE(status.ok()) << status.to_string();
    }
    EXPECT_GE(now_ns() - start_ns, 60'000'000);
    for (int r = 0; r < 2; ++r)
      EXPECT_EQ(std::memcmp(recv.data() + static_cast<uint64_t>(r) * kBytes, pattern(r, 0), kBytes),
                0);
    rank.all.arrive_and_wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Small, DeviceCollectives,
                         testing::Values(Case{1, Dtype::kFloat32, RedOp::kSum, 1000},
                                         Case{1, Dtype::kInt8, RedOp::kAvg, 0},
                                         Case{2, Dtype::kInt32, RedOp::kSum, 0},
                                         Case{4, Dtype::kBfloat16, RedOp::kSum, 0},
                                         Case{2, Dtype::kFloat8E4m3, RedOp::kSum, 1},
                                         Case{3, Dtype::kFloat64, RedOp::kProd, 1},
                                         Case{4, Dtype::kUint8, RedOp::kMax, 1},
                                         Case{3, Dtype::kInt16, RedOp::kMin, 127},
                                         Case{3, Dtype::kBfloat16, RedOp::kSum, 128},
                                         Case{3, Dtype::kFloat16, RedOp::kAvg, 129},
                                         Case{4, Dtype::kUint64, RedOp::kSum, 10'007},
                                         Case{2, Dtype::kFloat32, RedOp::kSum, 4099, 0, 4},
                                         Case{3, Dtype::kFloat64, RedOp::kSum, 4099, 0, 3},
                                         Case{4, Dtype::kFloat32, RedOp::kAvg, 4099, 0, 1, 2}));
INSTANTIATE_TEST_SUITE_P(
    Rounds, DeviceCollectives,
    testing::Values(Case{1, Dtype::kFloat64, RedOp::kSum, 9 * kMega / 8},
                    Case{2, Dtype::kFloat64, RedOp::kSum, kMega / 2},
                    Case{2, Dtype::kFloat64, RedOp::kSum, 9 * kMega / 8 + 3, 0, 1},
                    Case{3, Dtype::kFloat64, RedOp::kSum, 3 * kMega / 4 + 5},
                    Case{4, Dtype::kUint64, RedOp::kMax, 9 * kMega / 16 + 1},
                    Case{5, Dtype::kInt32, RedOp::kSum, kMega / 2 + 7},
                    Case{8, Dtype::kUint8, RedOp::kMax, 2 * kMega + 5},
                    Case{6, Dtype::kUint64, RedOp::kSum, kMega / 2 + 2, 0.9},
                    Case{3, Dtype::kInt32, RedOp::kSum, kMega + 7, 0.2, 0, -1, 0, true}));
INSTANTIATE_TEST_SUITE_P(
    OverTheHost, DeviceCollectives,
    testing::Values(
        Case{2, Dtype::kFloat32, RedOp::kSum, 9 * kMega / 4, 0.3},
        Case{2, Dtype::kUint8, RedOp::kMax, 4 * kMega + 16, 1},
        Case{2, Dtype::kUint8, RedOp::kMax, 4 * kMega + 8, 0.3},
        Case{2, Dtype::kUint8, RedOp::kMin, 4 * kMega, 0.3, 3, 1},
        Case{3, Dtype::kFloat64, RedOp::kSum, kMega / 2 + 2, 0.3},
        Case{3, Dtype::kBfloat16, RedOp::kSum, 5 * kMega / 4 + 8, 0.07},
        Case{4, Dtype::kFloat32, RedOp::kAvg, kMega + 12, 0.08},
        Case{3, Dtype::kBfloat16, RedOp::kSum, 4 * kMega + 8, 0.07},
        // The last segment, of no whole vectors, does not use the host link.
        Case{3, Dtype::kFloat32, RedOp::kSum, 2 * kMega - 4093, 0.3, 0, -1, 0, false, true},
        Case{2, Dtype::kFloat32, RedOp::kSum, 3 * kMega + 5, 0.3, 0, -1, 0, false, true},
        Case{4, Dtype::kUint64, RedOp::kSum, kMega / 2 + 2, 1, 8}));
INSTANTIATE_TEST_SUITE_P(
    OverTheNic, DeviceCollectives,
    testing::Values(Case{2, Dtype::kFloat32, RedOp::kSum, kMega + 4, 0.1, 0, -1, 25},
                    Case{2, Dtype::kUint8, RedOp::kMax, 4 * kMega + 16, 0, 3, 1, 100}));

}  // namespace
}  // namespace braid::coll::device
