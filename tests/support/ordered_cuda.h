// A FakeCuda that looks for missing waits between streams. FakeCuda runs work at once and in the
// order of its enqueuing, where a GPU keeps only what streams, events and barriers promise. Here
// every piece of work has a time on a clock per stream, and clocks are handed on
//
//   on a stream        from one piece of work to the next
//   by an event        from the stream that recorded to the stream that waits
//   by braid_barrier   from every rank that tells to every rank that hears
//   by braid_meet_pairs and braid_short_blocks  between the ranks of every pair
//
// Two pieces of work that touch a byte, one of them writing it, must be ordered so; else the test
// fails. So must be all work of a call and the caller's stream: expect_joined().
//
// Threads: as FakeCuda. One comm at a time.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "coll/reduce/reduce_args.h"
#include "coll/reduce/reduce_names.h"
#include "support/fake_kernels.h"

namespace braid::test {

class OrderedCuda : public sys::FakeCuda {
 public:
  using FakeCuda::FakeCuda;

  /// Everything that the calling thread has enqueued on other streams comes before what `origin`
  /// gets from now on. A captured stream that was forked and not joined is an error of its own.
  void expect_joined(sys::Stream origin) {
    const std::lock_guard lock(mutex_);
    for (void* const stream : streams_of_[std::this_thread::get_id()]) {
      EXPECT_LE(clocks_[stream][stream], clocks_[origin.handle][stream])
          << "stream " << stream << " was not joined";
    }
  }

  Status record(sys::Event event, sys::Stream stream) override {
    {
      const std::lock_guard lock(mutex_);
      recorded_[event.handle] = clocks_[stream.handle];
    }
    return FakeCuda::record(event, stream);
  }
  Status wait_event(sys::Stream stream, sys::Event event) override {
    {
      const std::lock_guard lock(mutex_);
      hear(stream.handle, recorded_[event.handle]);
      tick(stream.handle);  // a fork counts as work: it has to be joined
    }
    return FakeCuda::wait_event(stream, event);
  }
  Status copy_on_device(sys::DevicePtr to, sys::DevicePtr from, uint64_t bytes,
                        sys::Stream stream) override {
    {
      const std::lock_guard lock(mutex_);
      tick(stream.handle);
      touch(stream.handle, from, bytes, false, "a copy's source");
      touch(stream.handle, to, bytes, true, "a copy's destination");
    }
    return FakeCuda::copy_on_device(to, from, bytes, stream);
  }
  Result<sys::Kernel> kernel(sys::Module module, const char* name) override {
    Result<sys::Kernel> found = FakeCuda::kernel(module, name);
    const std::lock_guard lock(mutex_);
    if (found.ok()) names_[found.value().handle] = name;
    return found;
  }
  Status launch_kernel(sys::Kernel kernel, const sys::LaunchShape& shape, sys::Stream stream,
                       std::span<void*> arguments) override {
    std::string name;
    {
      const std::lock_guard lock(mutex_);
      name = names_[kernel.handle];
      tick(stream.handle);
      if (name.starts_with("braid_barrier")) tell(stream.handle, arguments);
      if (name == "braid_meet_pairs") tell_pairs(stream.handle, arguments);
      if (name == "braid_short_blocks") send_short(stream.handle, arguments);
      if (name.starts_with("braid_host_ring")) touch_flows(stream.handle, arguments);
      if (name == "braid_local_copy") touch_copy(stream.handle, arguments);
      if (name.starts_with("braid_reduce_")) touch_sum(stream.handle, name, arguments);
    }
    const uint64_t number = name.starts_with("braid_barrier") ? number_of(arguments) : 0;
    BRAID_RETURN_IF_ERROR(FakeCuda::launch_kernel(kernel, shape, stream, arguments));
    const std::lock_guard lock(mutex_);
    if (name.starts_with("braid_barrier"))
      hear_others(stream.handle, number, heard_by(name, arguments), arguments);
    if (name == "braid_meet_pairs") hear_pairs(stream.handle, arguments);
    if (name == "braid_short_blocks") take_short(stream.handle, arguments);
    return {};
  }

 private:
  using Clock = std::map<void*, uint64_t>;  // by stream: its last piece of work that came before
  struct Access {
    sys::DevicePtr begin, end;
    bool writes;
    void* stream;
    uint64_t time;
    const char* what;
  };

  void tick(void* stream) {
    ++clocks_[stream][stream];
    streams_of_[std::this_thread::get_id()].insert(stream);
  }
  void hear(void* stream, const Clock& earlier) {
    Clock& own = clocks_[stream];
    for (const auto& [other, time] : earlier) own[other] = std::max(own[other], time);
  }
  void touch(void* stream, sys::DevicePtr begin, uint64_t bytes, bool writes, const char* what) {
    const Access now{begin, begin + bytes, writes, stream, clocks_[stream][stream], what};
    const Access* const end = accesses_.data() + accesses_.size();
    for (const Access* at = accesses_.data(); at != end; ++at) {  // many: no iterators' calls
      const Access& before = *at;
      const bool conflict = (writes || before.writes) && before.begin < now.end &&
                            now.begin < before.end && before.begin < before.end && bytes > 0;
      if (conflict && before.time > clocks_[stream][before.stream])
        ADD_FAILURE() << what << " on stream " << stream << " does not wait for " << before.what
                      << " on stream " << before.stream;
    }
    accesses_.push_back(now);
  }
  void touch_flows(void* stream, std::span<void*> arguments) {
    const auto flows = argument<pcie::Flows>(arguments, 2);
    for (int i = 0; i < flows.num_flows; ++i) {
      const pcie::Flow& flow = flows.flow[i];
      const bool sends = flow.source != nullptr;
      touch(stream, reinterpret_cast<sys::DevicePtr>(sends ? flow.source : flow.destination),
            flow.bytes, !sends, sends ? "a flow's source" : "a flow's destination");
    }
  }
  void touch_copy(void* stream, std::span<void*> arguments) {
    const auto bytes = argument<uint64_t>(arguments, 2);
    touch(stream, argument<sys::DevicePtr>(arguments, 1), bytes, false, "a copy's source");
    touch(stream, argument<sys::DevicePtr>(arguments, 0), bytes, true, "a copy's destination");
  }
  void touch_sum(void* stream, const std::string& name, std::span<void*> arguments) {
    const auto args = argument<coll::ReduceArgs>(arguments, 0);
    uint64_t bytes = 0;
    for (const Dtype dtype : kAllDtypes)
      for (const RedOp op : kAllRedOps)
        if (name == coll::reduce_kernel_name(dtype, op))
          bytes = args.count_elements * dtype_bytes(dtype);
    for (int r = 0; r < args.num_srcs; ++r)
      touch(stream, reinterpret_cast<sys::DevicePtr>(args.srcs[r]), bytes, false, "an operand");
    for (int d = 0; d < args.num_dsts; ++d)
      touch(stream, reinterpret_cast<sys::DevicePtr>(args.dsts[d]), bytes, true, "a sum");
  }

  // --- barriers ---

  static uint64_t number_of(std::span<void*> arguments) {
    return argument<nvlink::SignalPad>(arguments, 1).numbers[argument<int32_t>(arguments, 2)] + 1;
  }
  void tell(void* stream, std::span<void*> arguments) {
    const auto team = argument<nvlink::Team>(arguments, 0);
    told_[{argument<int32_t>(arguments, 2), number_of(arguments), team.rank}] = clocks_[stream];
  }
  static uint32_t heard_by(const std::string& name, std::span<void*> arguments) {
    return name == "braid_barrier" ? argument<nvlink::BarrierMask>(arguments, 3).hears : ~0U;
  }
  void hear_others(void* stream, uint64_t number, uint32_t hears, std::span<void*> arguments) {
    const auto team = argument<nvlink::Team>(arguments, 0);
    for (int peer = 0; peer < team.size; ++peer)
      if (peer != team.rank && (hears >> peer & 1U) != 0)
        hear(stream, told_[{argument<int32_t>(arguments, 2), number, peer}]);
  }

  // Each rank of a pair counts its meetings alike, so the number that a rank tells under, of what
  // it has met before, is the one that the other hears under.
  template <typename Visit>
  static void for_pairs(std::span<void*> arguments, Visit&& visit) {
    const auto team = argument<nvlink::Team>(arguments, 0);
    const auto with = argument<uint32_t>(arguments, 2);
    for (int peer = 0; peer < team.size; ++peer)
      if (peer != team.rank && (with >> peer & 1U) != 0)
        visit(team.rank, peer, argument<nvlink::SignalPad>(arguments, 1).pair_numbers[peer]);
  }
  void tell_pairs(void* stream, std::span<void*> arguments) {
    for_pairs(arguments, [&](int rank, int peer, uint64_t met) {
      told_to_[{rank, peer, met + 1}] = clocks_[stream];
    });
  }
  void hear_pairs(void* stream, std::span<void*> arguments) {
    for_pairs(arguments,
              [&](int rank, int peer, uint64_t met) { hear(stream, told_to_[{peer, rank, met}]); });
  }

  // A pair's exchange is known by the barrier that opened its call.
  template <typename Visit>
  static void for_short(std::span<void*> arguments, Visit&& visit) {
    const auto team = argument<nvlink::Team>(arguments, 0);
    const auto blocks = argument<nvlink::ShortBlocks>(arguments, 3);
    const uint64_t number =
        argument<nvlink::SignalPad>(arguments, 1).numbers[argument<int32_t>(arguments, 2)];
    for (int b = 0; b < blocks.num_blocks; ++b) visit(team.rank, blocks.block[b], number);
  }
  void send_short(void* stream, std::span<void*> arguments) {
    for_short(arguments, [&](int rank, const nvlink::ShortBlock& block, uint64_t number) {
      touch(stream, address_of(block.out), block.out_bytes, false, "a short block's source");
      std::byte* const to = block.peer == rank ? block.in : block.theirs;
      touch(stream, address_of(to), block.out_bytes, true, "a short block in the scratch");
      told_short_[{rank, block.peer, number}] = clocks_[stream];
    });
  }
  void take_short(void* stream, std::span<void*> arguments) {
    for_short(arguments, [&](int rank, const nvlink::ShortBlock& block, uint64_t number) {
      if (block.peer == rank) return;
      hear(stream, told_short_[{block.peer, rank, number}]);
      touch(stream, address_of(block.ours), block.in_bytes, false, "a short block that came");
      touch(stream, address_of(block.in), block.in_bytes, true, "a short block's place");
    });
  }
  static sys::DevicePtr address_of(const std::byte* memory) {
    return reinterpret_cast<sys::DevicePtr>(memory);
  }

  std::mutex mutex_;
  std::map<void*, Clock> clocks_;                               // [stream]
  std::map<void*, Clock> recorded_;                             // [event]
  std::map<std::tuple<int32_t, uint64_t, int>, Clock> told_;    // [channel, number, rank]
  std::map<std::tuple<int, int, uint64_t>, Clock> told_to_;     // [teller, hearer, meeting]
  std::map<std::tuple<int, int, uint64_t>, Clock> told_short_;  // [teller, hearer, barrier]
  std::map<void*, std::string> names_;                          // of kernels
  std::map<std::thread::id, std::set<void*>> streams_of_;
  std::vector<Access> accesses_;
};

}  // namespace braid::test
