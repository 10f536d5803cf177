// The track of a race on GPUs: bursts of NCCL's calls and of braid's in turn, on a stream of its
// own and in memory of its own, between barriers of all ranks.
//
//   stream   barrier  start  call call call ..  barrier  end    of NCCL, then the same of braid
//
// The first barrier lets all ranks begin at once, the second ends when the slowest is through: so a
// rank that is told of no more than its own part (a broadcast's root) still times the call.
//
// Over nodes a program's calls are not as in a burst: they come by themselves, behind a pause in which other
// calls had the network, and a connection may begin anew. So there the second heat has single calls, and the
// third has them behind a longer pause:
//
//   stream   barrier  pause  start  call  barrier  again  call  barrier  end    of NCCL, then the same of braid
//
// NCCL's always first, so that each comes behind the other's. The slower of the two calls counts, for either
// may be the one that is slow. The pause is behind the barrier, which braid's rail carries: it would wake
// braid's connections for it, and not NCCL's. So nothing brings ranks together at its end, and the first call's
// time has in it by how much they wake apart, of NCCL's and of braid's alike: who is faster in calls as short as
// that seems less so, and where ranks contradict each other by it (Agreement) the size is NCCL's.
//
// What is enqueued of NCCL has no deadline. The host never waits for it without looking at the
// clock, at the group and at whether the program has broken the communicator off; when it stops
// waiting, stream and memory are left to it (is_left()).
//
// Threads: one.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bindings/nccl/core/race.h"
#include "bindings/nccl/core/race_memory.h"
#include "bindings/nccl/core/real_calls.h"
#include "comm/device/device.h"
#include "group/group.h"
#include "sys/cuda/owned.h"

namespace braid::nccl {

/// What a lap comes to by all ranks' numbers, whose first are codes. unsupported: NCCL refused the
/// call on every rank, and nothing of it lies anywhere.
Status judge_codes(const std::vector<std::vector<int64_t>>& all, const Status& own);

/// Over several nodes: what braid's calls and barriers are there, where the device is one node's.
struct OverNodes {
  std::function<Status(const braid_nccl_call&)> enqueue;
  std::function<Status(sys::Stream)> barrier;
  std::string map;  // for the cache's key
};

/// Whom a race is run for. `group` has all ranks.
struct Entrants {
  comm::Device& device;
  group::Group& group;
  RealCalls& real_calls;
  braid_nccl_real real;
  braid_nccl_op op;
  SizeRange sizes;
  bool in_windows = false;           // of one node
  const OverNodes* nodes = nullptr;  // one node

  Status enqueue_ours(const braid_nccl_call& call) const;
  Status barrier(sys::Stream stream) const;
};

class RaceTrack : public Track {
 public:
  /// `exchange_deadline`: for the ranks to tell each other; `patience_ns`: for what is enqueued.
  RaceTrack(const Entrants& entrants, Deadline exchange_deadline, int64_t patience_ns)
      : for_(entrants),
        deadline_(exchange_deadline),
        patience_ns_(patience_ns),
        memory_(entrants.device, entrants.real_calls, entrants.real, entrants.in_windows) {}
  ~RaceTrack() override;

  /// Collective: takes memory, as much as every rank has. The clock starts.
  Status prepare();
  SizeRange sizes() const override { return sizes_; }
  /// In windows the first one is in place, where an operation can be, and the second is not.
  std::span<const Heat> heats() const override;
  Result<Lap> run(size_t i, int num_calls, size_t heat) override;
  /// Collective, when all have run the same laps, and none of them failed: gives the memory back.
  Status finish() { return is_left_ ? Status() : memory_.close(); }

 private:
  /// Bursts of a lap; of single calls two of one each.
  struct Burst {
    uint64_t call_bytes;
    int num_calls;
    bool is_in_place;
    Calls calls;
    bool is_of_singles() const { return calls != Calls::kBursts; }
  };
  Status take_memory();
  Result<int64_t> burst_ns(const Burst& burst, bool is_real);
  /// Begins when all that is enqueued is through.
  Status pause(Calls calls);
  Status enqueue_timed(const Burst& burst, bool is_real, sys::Event end);
  Status enqueue_burst(const Burst& burst, bool is_real);
  Status wait_for(sys::Event event);
  bool is_in_place(size_t heat) const;
  braid_nccl_call call_of(const Burst& burst) const;

  Entrants for_;
  const Deadline deadline_;
  const int64_t patience_ns_;
  int64_t begin_ns_ = 0;
  SizeRange sizes_{0, 0};
  bool is_left_ = false;  // something enqueued is not through
  bool real_first_ = false;
  RaceMemory memory_;
  sys::OwnedStream stream_;
  std::array<sys::OwnedEvent, 3> events_;
};

}  // namespace braid::nccl
