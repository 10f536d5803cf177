// What is observed of calls on fake GPUs with modelled times.
#include <gtest/gtest.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/units.h"
#include "coll/device/collectives.h"
#include "coll/device/entry.h"
#include "coll/device/fake_sums.h"
#include "comm/observe/observer.h"
#include "support/fake_relay.h"
#include "support/gpu_ranks.h"
#include "support/timed_cuda.h"

namespace braid::coll::device {
namespace {

using comm::CallNote;
using comm::CallState;
using test::GpuRank;
using test::GuardedMemory;
using test::TimedCuda;

constexpr uint64_t kObservedBlock = 8_MiB;

/// run_gpus() with comms that are observed from the beginning.
void run_observed(TimedCuda& cuda, const test::Options& observing,
                  const std::function<void(GpuRank&, sys::Stream)>& body, int size = 2) {
  test::define_team_kernels(cuda);
  test::define_relay(cuda);
  test::define_sums(cuda);
  test::run_gpu_comms(size, observing, [&](comm::Comm& comm, std::barrier<>& all) {
    auto made = comm::Device::create(comm.state(), cuda, {comm.rank(), test::small_arena(size)});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    {
      const std::lock_guard lock(comm.state().mutex);  // the keeper looks at it
      comm.state().device = std::move(made).value();
    }
    GpuRank rank{comm, *comm.state().device, cuda, all};
    const auto stream =
        sys::own<sys::OwnedStream>(cuda, cuda.create_stream(sys::StreamPriority::kNormal));
    body(rank, stream.value().get());
    all.arrive_and_wait();
  });
  EXPECT_EQ(cuda.alive(), sys::FakeCudaCounts{});
}

Status gather(GpuRank& rank, const GuardedMemory& send, const GuardedMemory& recv,
              sys::Stream stream) {
  return on_device(rank.comm, rank.rank(), [&](comm::Device& device) {
    return all_gather(device, send.get(), recv.get(), send.bytes(), Dtype::kUint8, stream);
  });
}

/// Once the last of them is in that state, or seconds have passed: a look gives way to the
/// keeper's.
std::vector<CallNote> settled_notes(GpuRank& rank, CallState last = CallState::kCompleted) {
  for (const Deadline deadline = Deadline::after_ns(5_s);;) {
    (void)rank.comm.trace_json();  // looks what the GPU has done
    std::vector<CallNote> notes = rank.comm.state().observer->journal().notes();
    if ((!notes.empty() && notes.back().state == last) || deadline.passed()) return notes;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(ObserveGpu, NotesCallsWithTheirTimesOnTheGpu) {
  TimedCuda cuda(2);
  run_observed(cuda, {{"BRAID_TRACE_CALLS", "8"}}, [](GpuRank& rank, sys::Stream stream) {
    // Results are not registered, so the host link gets five eighths of that.
    rank.device.links().main().shares().set_tuned(plan::Op::kAllGather, 0.5);
    const GuardedMemory send(rank.cuda, kObservedBlock), recv(rank.cuda, 2 * kObservedBlock);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(gather(rank, send, recv, stream).ok());
    ASSERT_TRUE(on_device(rank.comm, rank.rank(), [&](comm::Device& device) {
                  return barrier(device, stream);
                }).ok());
    rank.all.arrive_and_wait();
    const auto notes = settled_notes(rank);
    ASSERT_EQ(notes.size(), 4u);
    for (size_t i = 0; i < 3; ++i) {
      const CallNote& note = notes[i];
      EXPECT_TRUE(note.on_gpu);
      EXPECT_EQ(note.number, i + 1);
      EXPECT_EQ(note.state, CallState::kCompleted);
      EXPECT_STREQ(note.path, "copy engines");
      EXPECT_EQ(note.stream, reinterpret_cast<uint64_t>(stream.handle));
      EXPECT_EQ(note.shape.bytes, 2 * kObservedBlock);
      // The slower of 5.5 MiB at 385 GB/s and 2.5 MiB at 33 GB/s, and the ring's start.
      EXPECT_NEAR(static_cast<double>(note.gpu_end_ns - note.gpu_begin_ns),
                  1'000 + static_cast<double>(2_MiB + 512_KiB) / 33, 100);
      ASSERT_EQ(note.links.size(), 2u);
      EXPECT_EQ(note.links[0].link, rank.comm.state().observer->journal().facts().gpu_link(0));
      EXPECT_EQ(note.links[0].sent_bytes, 5_MiB + 512_KiB);
      EXPECT_EQ(note.links[1].sent_bytes, 2_MiB + 512_KiB);
      EXPECT_EQ(note.links[1].parts, plan::kWhole * 5 / 16);
      if (i > 0) {
        EXPECT_GE(note.gpu_begin_ns, notes[i - 1].gpu_end_ns - 1);
      }
    }
    EXPECT_TRUE(notes[3].shape.is_barrier);
    EXPECT_EQ(notes[3].state, CallState::kCompleted);
    const comm::Tally tally = rank.comm.state().observer->journal().tally();
    EXPECT_EQ(tally.kinds[1][static_cast<size_t>(plan::Op::kAllGather)].timed, 3u);
  });
}

TEST(ObserveGpu, AnUnevenCallSaysWhatThisRankSends) {
  TimedCuda cuda(2);
  run_observed(cuda, {{"BRAID_TRACE_CALLS", "8"}}, [](GpuRank& rank, sys::Stream stream) {
    const bool is_first = rank.rank() == 0;
    const std::vector<uint64_t> sent =
        is_first ? std::vector<uint64_t>{100, 5'000} : std::vector<uint64_t>{7'000, 100};
    const std::vector<uint64_t> received =
        is_first ? std::vector<uint64_t>{100, 7'000} : std::vector<uint64_t>{5'000, 100};
    const GuardedMemory send(rank.cuda, 2 * 8'000), recv(rank.cuda, 2 * 8'000);
    const Status status = on_device(rank.comm, rank.rank(), [&](comm::Device& device) {
      return all_to_all_v(device, send.get(), sent, recv.get(), received, Dtype::kInt16, stream);
    });
    ASSERT_TRUE(status.ok()) << status.to_string();
    rank.all.arrive_and_wait();
    const CallNote note = settled_notes(rank).back();
    EXPECT_EQ(note.shape.send_count, is_first ? 5'100u : 7'100u);
    EXPECT_EQ(note.shape.recv_count, is_first ? 7'100u : 5'100u);
    EXPECT_EQ(note.shape.bytes, 2 * note.shape.send_count);
    ASSERT_EQ(note.links.size(), 1u);
    EXPECT_EQ(note.links[0].sent_bytes, 2 * (note.shape.send_count - 100));
    EXPECT_EQ(note.state, CallState::kCompleted);
  });
}

TEST(ObserveGpu, WhatTheGpuHasNotDoneIsScheduled) {
  TimedCuda cuda(2);
  run_observed(cuda, {{"BRAID_TRACE_CALLS", "8"}}, [&](GpuRank& rank, sys::Stream stream) {
    const GuardedMemory send(rank.cuda, kObservedBlock), recv(rank.cuda, 2 * kObservedBlock);
    rank.all.arrive_and_wait();
    cuda.set_lateness(1'000'000);
    ASSERT_TRUE(gather(rank, send, recv, stream).ok());
    EXPECT_EQ(settled_notes(rank, CallState::kScheduled).back().state, CallState::kScheduled);
    const auto record = nlohmann::json::parse(rank.comm.flight_json().value());
    EXPECT_EQ(record["entries"][0]["state"], "scheduled");
    rank.all.arrive_and_wait();
    cuda.set_lateness(0);
  });
}

// Kernels whose wait ended in vain leave the stream as if they had done their work.
TEST(ObserveGpu, ACallThatWasGivenUpIsNotDone) {
  TimedCuda cuda(2);
  run_observed(cuda, {{"BRAID_TRACE_CALLS", "8"}}, [&](GpuRank& rank, sys::Stream stream) {
    const GuardedMemory send(rank.cuda, kObservedBlock), recv(rank.cuda, 2 * kObservedBlock);
    ASSERT_TRUE(gather(rank, send, recv, stream).ok());
    rank.all.arrive_and_wait();
    EXPECT_EQ(settled_notes(rank).back().state, CallState::kCompleted);
    rank.all.arrive_and_wait();
    cuda.set_lateness(1'000'000);
    ASSERT_TRUE(gather(rank, send, recv, stream).ok());
    rank.all.arrive_and_wait();
    rank.comm.state().group->report(peer_lost("rank 7 died"));
    rank.all.arrive_and_wait();
    cuda.set_lateness(0);  // of what is recorded from now on
    cuda.let_come();
    const auto notes = settled_notes(rank, CallState::kScheduled);
    EXPECT_EQ(notes[0].state, CallState::kCompleted);
    EXPECT_EQ(notes[1].state, CallState::kScheduled);
    EXPECT_EQ(notes[1].gpu_end_ns, 0);
    rank.all.arrive_and_wait();
  });
}

TEST(ObserveGpu, CapturedCallsHaveNoTimes) {
  TimedCuda cuda(2);
  run_observed(cuda, {{"BRAID_TRACE_CALLS", "8"}}, [&](GpuRank& rank, sys::Stream stream) {
    const GuardedMemory send(rank.cuda, kObservedBlock), recv(rank.cuda, 2 * kObservedBlock);
    const uint64_t before = cuda.num_timed();
    rank.all.arrive_and_wait();
    cuda.set_captured(stream, true);
    ASSERT_TRUE(gather(rank, send, recv, stream).ok());
    cuda.set_captured(stream, false);
    rank.all.arrive_and_wait();
    EXPECT_EQ(cuda.num_timed(), before);
    EXPECT_TRUE(settled_notes(rank, CallState::kScheduled).back().is_captured);
    const auto record = nlohmann::json::parse(rank.comm.flight_json().value());
    EXPECT_TRUE(record["entries"].empty());
  });
}

TEST(ObserveGpu, WithoutObserverNoEventTellsTimes) {
  TimedCuda cuda(2);
  run_observed(cuda, {}, [&](GpuRank& rank, sys::Stream stream) {
    const GuardedMemory send(rank.cuda, kObservedBlock), recv(rank.cuda, 2 * kObservedBlock);
    ASSERT_TRUE(gather(rank, send, recv, stream).ok());
    EXPECT_EQ(cuda.num_timed(), 0u);
  });
}

TEST(ObserveGpu, ABroadcastThatIsRelayedIsCalledSo) {
  constexpr int kSize = 3;
  TimedCuda cuda(kSize);
  run_observed(
      cuda, {{"BRAID_TRACE_CALLS", "8"}},
      [](GpuRank& rank, sys::Stream stream) {
        const GuardedMemory buf(rank.cuda, kObservedBlock);
        for (const bool is_registered : {false, true}) {
          if (is_registered) {
            ASSERT_TRUE(rank.device.registrations().add(buf.get(), kObservedBlock).ok());
          }
          ASSERT_TRUE(on_device(rank.comm, rank.rank(), [&](comm::Device& device) {
                        return broadcast(device, buf.get(), buf.get(), kObservedBlock,
                                         Dtype::kUint8, 1, stream);
                      }).ok());
        }
        const std::vector<CallNote> notes = rank.comm.state().observer->journal().notes();
        ASSERT_EQ(notes.size(), 2u);
        EXPECT_STREQ(notes[0].path, "copy engines");
        EXPECT_STREQ(notes[1].path, "relay");
        ASSERT_EQ(notes[1].links.size(), 1u);
        EXPECT_EQ(notes[1].links[0].sent_bytes,
                  rank.rank() == 1 ? kObservedBlock : kObservedBlock / 2);
        rank.all.arrive_and_wait();
        EXPECT_TRUE(rank.device.registrations().remove(buf.get()).ok());
      },
      kSize);
}

TEST(ObserveGpu, ARefusedCallIsCountedAndTheCommGoesOn) {
  TimedCuda cuda(2);
  run_observed(cuda, {{"BRAID_TRACE_CALLS", "8"}}, [](GpuRank& rank, sys::Stream stream) {
    const GuardedMemory buf(rank.cuda, 4096);
    EXPECT_EQ(on_device(rank.comm, rank.rank(),
                        [&](comm::Device& device) {
                          return broadcast(device, buf.get(), buf.get(), 4096, Dtype::kUint8, 7,
                                           stream);
                        })
                  .code(),
              Code::kInvalidArgument);
    const comm::Journal& journal = rank.comm.state().observer->journal();
    EXPECT_EQ(journal.tally().failures[static_cast<size_t>(Code::kInvalidArgument)], 1u);
    EXPECT_EQ(journal.num_calls(), 0u);
  });
}

}  // namespace
}  // namespace braid::coll::device
