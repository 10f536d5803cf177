// Graphs of captured calls among eager ones, on fake GPUs. The user puts them in one order on all
// ranks, as NCCL wants it; what a call counts must then follow that order, however often a graph is
// replayed. So nothing that changes from call to call may be in what a call enqueues.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/units.h"
#include "coll/device/collectives.h"
#include "coll/device/direct.h"
#include "coll/device/entry.h"
#include "coll/device/fake_sums.h"
#include "coll/device/lines.h"
#include "coll/device/packets.h"
#include "coll/reduce/reduce_names.h"
#include "support/fake_relay.h"
#include "support/gpu_ranks.h"
#include "support/graph_cuda.h"
#include "support/rows.h"
#include "sys/fabric/fake.h"

namespace braid::coll::device {
namespace {

using test::Graph;
using test::GraphCuda;
using test::GuardedMemory;

constexpr int kRanks = 3;

/// All five on one rank's memory of `bytes`, with values that tell rank, round and place.
class GraphRank {
 public:
  GraphRank(comm::Device& device, GraphCuda& cuda, uint64_t bytes)
      : device_(device),
        count_(bytes / sizeof(int32_t) / kRanks),
        send_(cuda, bytes),
        sums_(cuda, bytes),
        row_(cuda, bytes),
        part_(cuda, bytes),
        exchanged_(cuda, bytes),
        told_(cuda, bytes) {}

  void set_round(int round) {
    round_ = round;
    for (GuardedMemory* each : {&send_, &told_})
      std::memcpy(each->data(), input(device_.rank()), each->bytes());
    for (GuardedMemory* each : {&sums_, &row_, &part_, &exchanged_})
      std::memset(each->data(), 0xee, each->bytes());
  }
  Status call_all(sys::Stream stream) {
    const Dtype dtype = Dtype::kInt32;
    BRAID_RETURN_IF_ERROR(
        all_reduce(device_, send_.get(), sums_.get(), all(), dtype, RedOp::kSum, stream));
    BRAID_RETURN_IF_ERROR(all_gather(device_, send_.get(), row_.get(), count_, dtype, stream));
    BRAID_RETURN_IF_ERROR(
        reduce_scatter(device_, send_.get(), part_.get(), count_, dtype, RedOp::kSum, stream));
    BRAID_RETURN_IF_ERROR(
        all_to_all(device_, send_.get(), exchanged_.get(), count_, dtype, stream));
    return broadcast(device_, told_.get(), told_.get(), all(), dtype, 0, stream);
  }
  void check(const char* what) {
    SCOPED_TRACE(std::string(what) + " in round " + std::to_string(round_));
    const uint64_t mine = static_cast<uint64_t>(device_.rank()) * count_;
    const int32_t* const sums = rows().sum(kRanks, static_cast<uint64_t>(round_));
    expect("all_reduce", sums_, 0, sums, all());
    expect("reduce_scatter", part_, 0, sums + mine, count_);
    expect("broadcast", told_, 0, input(0), all());
    for (int r = 0; r < kRanks; ++r) {
      const uint64_t place = static_cast<uint64_t>(r) * count_;
      expect("all_gather", row_, place, input(r), count_);
      expect("all_to_all", exchanged_, place, input(r) + mine, count_);
    }
  }

 private:
  static const test::Rows<int32_t>& rows() {
    static const test::Rows<int32_t> made(kRanks, 18_MiB / sizeof(int32_t));
    return made;
  }
  const int32_t* input(int rank) const { return rows().of(rank, static_cast<uint64_t>(round_)); }
  uint64_t all() const { return count_ * kRanks; }
  void expect(const char* what, const GuardedMemory& memory, uint64_t place, const int32_t* want,
              uint64_t count) const {
    const auto* const got = reinterpret_cast<const int32_t*>(memory.data()) + place;
    EXPECT_EQ(test::first_wrong(got, want, count), count)
        << what << ", rank " << device_.rank() << ", from element " << place;
  }

  comm::Device& device_;
  const uint64_t count_;
  GuardedMemory send_, sums_, row_, part_, exchanged_, told_;
  int round_ = 0;
};

sys::OwnedStream stream_of(GraphCuda& cuda) {
  return sys::own<sys::OwnedStream>(cuda, cuda.create_stream(sys::StreamPriority::kNormal)).value();
}

const test::Options kWithNic = {{"BRAID_GPU_RDMA", "on"}, {"BRAID_GPU_RDMA_SHARE", "15"}};

// Messages of several rounds through scratch, parts of them over the host link and a NIC.
TEST(DeviceGraphs, ReplaysAndEagerCallsComeInAnyOrderThatRanksShare) {
  GraphCuda cuda(kRanks);
  test::define_team_kernels(cuda);
  test::define_relay(cuda);
  test::define_sums(cuda);
  sys::FakeFabric nics({.max_writes_per_poll = 16});
  const auto body = [&](test::GpuRank& rank) {
    for (const plan::Op op : plan::kAllOps) rank.device.links().main().shares().set_tuned(op, 0.2);
    GraphRank graphed(rank.device, cuda, 18_MiB), eager(rank.device, cuda, 15_MiB);
    const sys::OwnedStream one = stream_of(cuda), other = stream_of(cuda);
    const auto call_now = [&](int round) {
      eager.set_round(round);
      rank.all.arrive_and_wait();
      const Status status = eager.call_all(other.get());
      EXPECT_TRUE(status.ok()) << status.to_string();
      rank.all.arrive_and_wait();
      eager.check("eager");
    };
    call_now(0);
    cuda.begin_capture(one.get());
    const Status captured = graphed.call_all(one.get());
    EXPECT_TRUE(captured.ok()) << captured.to_string();
    const Graph graph = cuda.end_capture(one.get());
    EXPECT_GT(graph.work.size(), 50U);
    for (const int num_eager : {0, 1, 2, 0, 3}) {
      graphed.set_round(10 + num_eager);
      rank.all.arrive_and_wait();
      const Status replayed = GraphCuda::replay(graph);
      EXPECT_TRUE(replayed.ok()) << replayed.to_string();
      rank.all.arrive_and_wait();
      graphed.check("replayed");
      for (int i = 0; i < num_eager; ++i) call_now(i);
    }
    EXPECT_TRUE(rank.device.faults().status().ok()) << rank.device.faults().status().to_string();
    EXPECT_GT(test::nic_of(rank.device).state().traffic->sent_slots, 100U);
    rank.all.arrive_and_wait();
  };
  test::run_gpus(kRanks, cuda, kWithNic, body, &nics);
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

/// The kernels of packets, lines and direct calls, as far as a capture needs them: to be there.
void define_one_kernel_calls(GraphCuda& cuda) {
  const auto nothing = [](const sys::LaunchShape&, std::span<void*>) { return Status(); };
  for (const char* family : {"braid_packets_", "braid_lines_", "braid_direct_"})
    for (const char* op : {"all_gather", "all_to_all", "broadcast"})
      cuda.define_kernel(std::string(family) + op, nothing);
  cuda.define_kernel(packet_reduce_kernel_name(Dtype::kInt32, RedOp::kSum), nothing);
  cuda.define_kernel(line_reduce_kernel_name(Dtype::kInt32, RedOp::kSum), nothing);
  cuda.define_kernel(direct_reduce_kernel_name(Dtype::kInt32, RedOp::kSum), nothing);
}

// Two calls of a graph on streams that nothing has joined used the same scratch at once.
TEST(DeviceGraphs, CallsOnTwoStreamsOfACaptureAreOrdered) {
  GraphCuda cuda(kRanks);
  test::define_team_kernels(cuda);
  test::run_gpus(kRanks, cuda, {}, [&](test::GpuRank& rank) {
    const sys::OwnedStream one = stream_of(cuda), other = stream_of(cuda);
    const auto fork =
        sys::own<sys::OwnedEvent>(cuda, cuda.create_event(sys::EventTiming::kOff)).value();
    const GuardedMemory send(cuda, kRanks * 4096), recv(cuda, kRanks * 4096);
    const auto call_on = [&](const sys::OwnedStream& stream) {
      const Status status =
          all_to_all(rank.device, send.get(), recv.get(), 4096, Dtype::kUint8, stream.get());
      EXPECT_TRUE(status.ok()) << status.to_string();
    };
    cuda.begin_capture(one.get());
    EXPECT_TRUE(cuda.record(fork.get(), one.get()).ok());
    EXPECT_TRUE(cuda.wait_event(other.get(), fork.get()).ok());
    call_on(one);
    const int64_t before = cuda.num_waits(other.get(), one.get());
    call_on(other);
    EXPECT_EQ(cuda.num_waits(other.get(), one.get()), before + 1);
    (void)cuda.end_capture(one.get());
    // Another capture has nothing to wait for: the driver would refuse it.
    const int64_t ended = cuda.num_waits(one.get(), other.get());
    cuda.begin_capture(one.get());
    call_on(one);
    EXPECT_EQ(cuda.num_waits(one.get(), other.get()), ended);
    (void)cuda.end_capture(one.get());
    rank.all.arrive_and_wait();
  });
}

/// Ranks that have the memory for packets, lines and direct calls, too.
void run_with_areas(GraphCuda& cuda, const test::Options& options, sys::FabricLibrary* nics,
                    const std::function<void(test::GpuRank&)>& body) {
  test::run_gpu_comms(kRanks, options, [&](comm::Comm& comm, std::barrier<>& all) {
    comm.state().config = test::make_config(test::gpu_options(options));
    const Config& config = comm.state().config;
    const comm::ArenaRequest arena{
        0, {packet_area(config, kRanks), line_area(config, kRanks), direct_area(config, kRanks)}};
    auto device = comm::Device::create(comm.state(), cuda, {comm.rank(), arena, nics});
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    comm.state().device = std::move(device).value();
    test::GpuRank rank{comm, *comm.state().device, cuda, all};
    body(rank);
    all.arrive_and_wait();
  });
}

// A call of another capture in between hid what the calls of the first one wait for.
TEST(DeviceGraphs, CapturesThatTakeTurnsKeepTheOrderOfTheirCalls) {
  GraphCuda cuda(kRanks);
  test::define_team_kernels(cuda);
  define_one_kernel_calls(cuda);
  run_with_areas(cuda, {{"BRAID_GPU_PACKETS", "64KiB"}}, nullptr, [&](test::GpuRank& rank) {
    const sys::OwnedStream one = stream_of(cuda), forked = stream_of(cuda), two = stream_of(cuda);
    const auto fork =
        sys::own<sys::OwnedEvent>(cuda, cuda.create_event(sys::EventTiming::kOff)).value();
    const GuardedMemory send(cuda, kRanks * 4096), recv(cuda, kRanks * 4096);
    const auto call_on = [&](const sys::OwnedStream& stream) {
      const Status status =
          all_to_all(rank.device, send.get(), recv.get(), 4096, Dtype::kUint8, stream.get());
      EXPECT_TRUE(status.ok()) << status.to_string();
    };
    cuda.begin_capture(one.get());
    cuda.begin_capture(two.get());
    EXPECT_TRUE(cuda.record(fork.get(), one.get()).ok());
    EXPECT_TRUE(cuda.wait_event(forked.get(), fork.get()).ok());
    call_on(one);
    call_on(two);
    EXPECT_EQ(cuda.num_waits(two.get(), one.get()), 0);
    const int64_t before = cuda.num_waits(forked.get(), one.get());
    call_on(forked);
    EXPECT_EQ(cuda.num_waits(forked.get(), one.get()), before + 1);
    (void)cuda.end_capture(two.get());
    (void)cuda.end_capture(one.get());
    rank.all.arrive_and_wait();
  });
}

// The tenth call is enqueued with the bytes of the first one: by packets, by lines, directly, in
// rounds.
TEST(DeviceGraphs, CallsOfOneKindAreEnqueuedAlike) {
  GraphCuda cuda(kRanks);
  test::define_team_kernels(cuda);
  test::define_relay(cuda);
  test::define_sums(cuda);
  define_one_kernel_calls(cuda);
  test::Options options = {
      {"BRAID_GPU_PACKETS", "64KiB"}, {"BRAID_GPU_LINES", "1MiB"}, {"BRAID_GPU_DIRECT", "8MiB"}};
  options.insert(kWithNic.begin(), kWithNic.end());
  sys::FakeFabric nics;
  run_with_areas(cuda, options, &nics, [&](test::GpuRank& ours) {
    const sys::OwnedStream stream = stream_of(cuda);
    for (const uint64_t bytes : {3_KiB, 200_KiB, 1_MiB, 18_MiB}) {
      GraphRank rank(ours.device, cuda, bytes);
      std::vector<Graph> graphs(10);
      for (Graph& graph : graphs) {
        cuda.begin_capture(stream.get());
        const Status status = rank.call_all(stream.get());
        EXPECT_TRUE(status.ok()) << status.to_string();
        graph = cuda.end_capture(stream.get());
      }
      EXPECT_GE(graphs[0].work.size(), 5U);
      EXPECT_EQ(graphs[0].bytes, graphs[1].bytes) << bytes << " bytes";
      EXPECT_EQ(graphs[0].bytes, graphs[9].bytes) << bytes << " bytes";
    }
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

/// Sums a captured or an eager call of 3 KiB per rank, as users call it.
Status sum_on_device(test::GpuRank& rank, const GuardedMemory& memory, sys::Stream stream) {
  return on_device(rank.comm, rank.rank(), [&](comm::Device& device) {
    return all_reduce(device, memory.get(), memory.get(), memory.bytes() / sizeof(int32_t),
                      Dtype::kInt32, RedOp::kSum, stream);
  });
}

// One rank's capture was invalid, before a call or in the midst of it: all ranks' later calls
// failed.
TEST(DeviceGraphs, ACaptureThatBecameInvalidIsTheProgramsErrorAlone) {
  GraphCuda cuda(kRanks);
  test::define_team_kernels(cuda);
  test::define_sums(cuda);
  test::run_gpus(kRanks, cuda, {}, [&](test::GpuRank& rank) {
    const sys::OwnedStream stream = stream_of(cuda);
    const GuardedMemory memory(cuda, kRanks * 3_KiB);
    for (const size_t num_pieces : {0, 1, 3}) {
      cuda.begin_capture(stream.get());
      if (rank.rank() == 1) cuda.invalidate_capture(stream.get(), num_pieces);
      const Status captured = sum_on_device(rank, memory, stream.get());
      EXPECT_EQ(captured.ok(), rank.rank() != 1) << num_pieces << captured.to_string();
      (void)cuda.end_capture(stream.get());
      rank.all.arrive_and_wait();
      std::memset(memory.data(), 0, memory.bytes());
      *reinterpret_cast<int32_t*>(memory.data()) = 1 + rank.rank();
      rank.all.arrive_and_wait();
      const Status eager = sum_on_device(rank, memory, stream.get());
      EXPECT_TRUE(eager.ok()) << num_pieces << eager.to_string();
      EXPECT_EQ(*reinterpret_cast<int32_t*>(memory.data()), 6);
      rank.all.arrive_and_wait();
    }
    EXPECT_FALSE(rank.comm.state().group->broken());
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

constexpr const char* kOpenCapture = "calls of this comm are being captured";

Status in_registrations(test::GpuRank& rank,
                        const std::function<Status(comm::Registrations&)>& what) {
  return on_device(rank.comm, rank.rank(),
                   [&](comm::Device& device) { return what(device.registrations()); });
}

/// Sums of 1, 2 and 3 in the first word.
void expect_sums(test::GpuRank& rank, const GuardedMemory& memory,
                 const std::function<Status()>& sum, const char* what) {
  rank.all.arrive_and_wait();
  std::memset(memory.data(), 0, memory.bytes());
  *reinterpret_cast<int32_t*>(memory.data()) = 1 + rank.rank();
  rank.all.arrive_and_wait();
  const Status summed = sum();
  EXPECT_TRUE(summed.ok()) << what << ": " << summed.to_string();
  rank.all.arrive_and_wait();
  EXPECT_EQ(*reinterpret_cast<int32_t*>(memory.data()), 6) << what;
}

// It waited on a stream that the capture had: both were lost, and the comm on all ranks.
TEST(DeviceGraphs, ACallBesideAnOpenCaptureIsRefusedAndNothingElse) {
  GraphCuda cuda(kRanks);
  test::define_team_kernels(cuda);
  test::define_sums(cuda);
  test::run_gpus(kRanks, cuda, {}, [&](test::GpuRank& rank) {
    const sys::OwnedStream one = stream_of(cuda), two = stream_of(cuda);
    const GuardedMemory memory(cuda, kRanks * 3_KiB), other(cuda, kRanks * 3_KiB);
    for (const bool is_captured_too : {false, true}) {
      cuda.begin_capture(one.get());
      EXPECT_TRUE(sum_on_device(rank, memory, one.get()).ok());
      if (is_captured_too) cuda.begin_capture(two.get());
      const Status beside = sum_on_device(rank, other, two.get());
      EXPECT_EQ(beside.code(), Code::kInvalidArgument) << beside.to_string();
      EXPECT_THAT(beside.message(), testing::HasSubstr(kOpenCapture));
      EXPECT_TRUE(sum_on_device(rank, memory, one.get()).ok()) << "the capture goes on";
      if (is_captured_too) {
        EXPECT_TRUE(cuda.end_capture(two.get()).work.empty());
      }
      const Graph graph = cuda.end_capture(one.get());
      expect_sums(rank, other, [&] { return sum_on_device(rank, other, two.get()); }, "eager");
      rank.all.arrive_and_wait();
      EXPECT_TRUE(GraphCuda::replay(graph).ok());
      rank.all.arrive_and_wait();
    }
    EXPECT_FALSE(rank.comm.state().group->broken());
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

// A call of two ranks by the host's link has that link's stream in its capture, and no other of ours.
TEST(DeviceGraphs, ALinksStreamIsInACaptureToo) {
  GraphCuda cuda(2);
  test::define_team_kernels(cuda);
  test::run_gpus(2, cuda, {}, [&](test::GpuRank& rank) {
    for (const plan::Op op : plan::kAllOps) rank.device.links().main().shares().set_tuned(op, 0.2);
    const sys::OwnedStream one = stream_of(cuda), two = stream_of(cuda);
    const GuardedMemory recv(cuda, 2 * 15_MiB), send(cuda, 15_MiB);
    EXPECT_TRUE(
        in_registrations(rank, [&](auto& all) { return all.add(recv.get(), recv.bytes()); }).ok());
    const auto gather = [&](sys::Stream stream) {
      return on_device(rank.comm, rank.rank(), [&](comm::Device& device) {
        return all_gather(device, send.get(), recv.get(), send.bytes(), Dtype::kUint8, stream);
      });
    };
    cuda.begin_capture(one.get());
    EXPECT_TRUE(gather(one.get()).ok());
    const Status beside = gather(two.get());
    EXPECT_EQ(beside.code(), Code::kInvalidArgument) << beside.to_string();
    (void)cuda.end_capture(one.get());
    const Status later = gather(two.get());
    EXPECT_TRUE(later.ok()) << later.to_string();
    rank.all.arrive_and_wait();
  });
}

// Neither needs a stream of the comm's that a capture may have.
TEST(DeviceGraphs, MemoryIsRegisteredAndUnregisteredBesideAnOpenCapture) {
  GraphCuda cuda(kRanks);
  test::define_team_kernels(cuda);
  test::define_sums(cuda);
  test::run_gpus(kRanks, cuda, {}, [&](test::GpuRank& rank) {
    const sys::OwnedStream one = stream_of(cuda), two = stream_of(cuda);
    const GuardedMemory memory(cuda, kRanks * 3_KiB), other(cuda, kRanks * 3_KiB);
    const auto add = [&](const GuardedMemory& which) {
      return in_registrations(rank, [&](auto& all) { return all.add(which.get(), which.bytes()); });
    };
    const auto remove = [&](const GuardedMemory& which) {
      return in_registrations(rank, [&](auto& all) { return all.remove(which.get()); });
    };
    EXPECT_TRUE(sum_on_device(rank, other, two.get()).ok());
    cuda.begin_capture(one.get());
    EXPECT_TRUE(sum_on_device(rank, memory, one.get()).ok());
    const Status added = add(other), forgotten = in_registrations(
                                         rank, [&](auto& all) { return all.forget(other.get()); });
    EXPECT_TRUE(added.ok()) << added.to_string();
    EXPECT_TRUE(forgotten.ok());
    const Status again = add(other), removed = remove(other);
    EXPECT_TRUE(again.ok()) << again.to_string();
    EXPECT_TRUE(removed.ok()) << removed.to_string();
    // What a captured call may use cannot be waited for here.
    EXPECT_TRUE(add(other).ok());
    EXPECT_TRUE(sum_on_device(rank, other, one.get()).ok());
    const Status used = remove(other);
    EXPECT_EQ(used.code(), Code::kInvalidArgument) << used.to_string();
    EXPECT_THAT(used.message(), testing::HasSubstr(kOpenCapture));
    (void)cuda.end_capture(one.get());
    EXPECT_TRUE(remove(other).ok());
    expect_sums(rank, other, [&] { return sum_on_device(rank, other, two.get()); }, "eager");
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

// The peers' memory was unmapped while the graph's copies were still to write into it.
TEST(DeviceGraphs, UnregisteringWaitsForAReplay) {
  GraphCuda cuda(kRanks);
  test::define_team_kernels(cuda);
  test::define_sums(cuda);
  test::run_gpus(kRanks, cuda, {}, [&](test::GpuRank& rank) {
    const sys::OwnedStream stream = stream_of(cuda);
    const GuardedMemory memory(cuda, kRanks * 3_KiB);
    std::atomic<bool> is_running{false}, may_go_on{false}, is_over{false};
    EXPECT_TRUE(in_registrations(rank, [&](auto& all) {
                  return all.add(memory.get(), memory.bytes());
                }).ok());
    cuda.begin_capture(stream.get());
    (void)cuda.library_work(stream.get(), "a kernel of the program", [&] {
      is_running = true;
      while (!may_go_on) std::this_thread::yield();
      return Status();
    });
    EXPECT_TRUE(sum_on_device(rank, memory, stream.get()).ok());
    (void)cuda.library_work(stream.get(), "the last of it", [&] {
      is_over = true;
      return Status();
    });
    const Graph graph = cuda.end_capture(stream.get());
    rank.all.arrive_and_wait();
    std::thread gpu([&] {
      (void)cuda.use_device(rank.rank());
      const Status done = cuda.run(graph);
      EXPECT_TRUE(done.ok()) << done.to_string();
    });
    while (!is_running) std::this_thread::yield();
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      may_go_on = true;
    });
    const Status removed =
        in_registrations(rank, [&](auto& all) { return all.remove(memory.get()); });
    EXPECT_TRUE(removed.ok()) << removed.to_string();
    EXPECT_TRUE(is_over);
    later.join();
    gpu.join();
    rank.all.arrive_and_wait();
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

// What a graph that may still run looks at stays, for as long as the process lives.
TEST(DeviceGraphs, MemoryIsLeftToAGraphThatIsNotThrough) {
  static GraphCuda cuda(kRanks);  // as long as what is left
  test::define_team_kernels(cuda);
  test::define_sums(cuda);
  for (const bool is_through : {true, false}) {
    SCOPED_TRACE(is_through ? "through" : "not through");
    if (!is_through) cuda.fail("synchronize_device", 0, driver_error("work is stuck"));
    test::run_gpus(kRanks, cuda, {}, [&](test::GpuRank& rank) {
      {
        const sys::OwnedStream stream = stream_of(cuda);
        const GuardedMemory memory(cuda, kRanks * 3_KiB);
        cuda.begin_capture(stream.get());
        EXPECT_TRUE(sum_on_device(rank, memory, stream.get()).ok());
        (void)cuda.end_capture(stream.get());
      }
      rank.all.arrive_and_wait();
      EXPECT_TRUE(rank.comm.close(false).ok());
      rank.all.arrive_and_wait();
    });
    EXPECT_EQ(cuda.alive() == sys::FakeCudaCounts{}, is_through);
  }
}

}  // namespace
}  // namespace braid::coll::device
