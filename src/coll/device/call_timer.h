// Times collective calls for tuning (tune.h): facts, the same on all ranks.
#pragma once

#include <array>
#include <memory>

#include "base/status.h"
#include "comm/device/device.h"
#include "group/group.h"
#include "plan/plan.h"
#include "sys/cuda/owned.h"

namespace braid::coll::device {

/// The kernel of longest_pause.cu. Errors: those of comm::KernelCache::find().
Result<sys::Kernel> longest_pause_kernel(comm::Device& device);

/// Owns the buffers of the calls that it times. Every rank of the device has one and makes the same
/// calls in the same order.
class CallTimer {
 public:
  CallTimer(comm::Device& device, group::Group& group, Deadline deadline, uint64_t block_bytes)
      : device_(device), group_(group), deadline_(deadline), block_bytes_(block_bytes) {}

  /// Memory for blocks of up to block_bytes; of this rank alone.
  Status prepare();
  /// Collective, before the first call and behind the last. Results land in place, as in the calls
  /// that gain most by tuning. The clock of elapsed_ns() starts at open().
  Status open();
  Status close();

  /// Collective: microseconds of one call on the slowest rank, the mean of a few in a row.
  Result<double> time(plan::Op op, uint64_t block_bytes);
  /// Collective, some milliseconds: the longest time in which one of the GPUs ran another program
  /// in place of this one.
  Result<int64_t> longest_pause_ns();
  /// So long the rank that opened first had been at it when the last time() or longest_pause_ns()
  /// ended.
  int64_t elapsed_ns() const { return elapsed_ns_; }

 private:
  uint64_t bytes_of_all() const { return block_bytes_ * static_cast<uint64_t>(device_.size()); }
  Result<int64_t> own_ns(plan::Op op, uint64_t block_bytes);
  Status run(plan::Op op, uint64_t block_bytes, sys::Stream stream);
  Result<int64_t> most_of_all(int64_t own_ns);

  struct alignas(4096) HostPage {  // pages are pinned whole
    int64_t longest_pause_ns = 0;
  };

  comm::Device& device_;
  group::Group& group_;
  const Deadline deadline_;
  const uint64_t block_bytes_;
  int64_t begin_ns_ = 0;
  int64_t elapsed_ns_ = 0;
  sys::DeviceMemory send_;
  sys::DevicePtr recv_ = 0;
  nvlink::Hold recv_hold_;  // peers write there
  sys::OwnedStream stream_;
  std::array<sys::OwnedEvent, 2> events_;
  std::unique_ptr<HostPage> page_;
  sys::RegisteredHost pinned_;
  sys::DevicePtr page_on_device_ = 0;
};

/// What all_reduce and broadcast are asked about: a buffer, which is two blocks. Else a block.
uint64_t seen_bytes(plan::Op op, uint64_t block_bytes);

}  // namespace braid::coll::device
