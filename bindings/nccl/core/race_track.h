// The track of a race on GPUs: bursts of NCCL's calls and of braid's in turn, on a stream of its
// own and in memory of its own, between barriers of all ranks.
//
//   stream   barrier  start  call call call ..  barrier  end    of NCCL, then the same of braid
//
// The first barrier lets all ranks begin at once, the second ends when the slowest is through: so a
// rank that is told of no more than its own part (a broadcast's root) still times the call.
//
// What is enqueued of NCCL has no deadline. The host never waits for it without looking at the
// clock, at the group and at whether the program has broken the communicator off; when it stops
// waiting, stream and memory are left to it (is_left()).
//
// Threads: one, but for RealCalls.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bindings/nccl/core/race.h"
#include "comm/device/device.h"
#include "group/group.h"
#include "sys/cuda/owned.h"

namespace braid::nccl {

/// What a lap comes to by all ranks' numbers, whose first are codes. unsupported: NCCL refused the
/// call on every rank, and nothing of it lies anywhere.
Status judge_codes(const std::vector<std::vector<int64_t>>& all, const Status& own);

/// The way to the real communicator, until it is shut: the program may then end that communicator.
class RealCalls {
 public:
  /// unavailable when shut; unsupported when NCCL refuses the call.
  Status run(const braid_nccl_real& real, const braid_nccl_call& call);
  /// No call begins any longer. Waits a moment for one that is under way; not for ever, because it
  /// may be one that only the end of the communicator ends.
  void shut();
  bool is_shut() const { return is_shut_; }

 private:
  std::mutex mutex_;
  std::atomic<bool> is_shut_{false}, is_inside_{false};
};

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
  const OverNodes* nodes = nullptr;  // one node

  Status enqueue_ours(const braid_nccl_call& call) const;
  Status barrier(sys::Stream stream) const;
  double least_gain() const { return nodes != nullptr ? kLeastGainOverNodes : kLeastGain; }
};

class RaceTrack : public Track {
 public:
  /// `exchange_deadline`: for the ranks to tell each other; `patience_ns`: for what is enqueued.
  RaceTrack(const Entrants& entrants, Deadline exchange_deadline, int64_t patience_ns)
      : for_(entrants), deadline_(exchange_deadline), patience_ns_(patience_ns) {}
  ~RaceTrack() override;

  /// Collective: takes memory, as much as every rank has. The clock starts.
  Status prepare();
  SizeRange sizes() const override { return sizes_; }
  Result<Lap> run(size_t i, int num_calls) override;

 private:
  Status take_memory();
  Result<int64_t> burst_ns(size_t i, int num_calls, bool is_real);
  Status enqueue_burst(size_t i, int num_calls, bool is_real);
  Status wait_for(sys::Event event);
  braid_nccl_call call_of(uint64_t bytes) const;

  Entrants for_;
  const Deadline deadline_;
  const int64_t patience_ns_;
  int64_t begin_ns_ = 0;
  SizeRange sizes_{0, 0};
  bool is_left_ = false;  // something enqueued is not through
  bool real_first_ = false;
  sys::DeviceMemory send_, recv_;
  sys::OwnedStream stream_;
  std::array<sys::OwnedEvent, 2> events_;
};

}  // namespace braid::nccl
