// A rail whose network is the real NCCL's: a communicator of its own among the ranks with one place
// in their nodes, made of a fresh id. It is never a child of the user's communicator, which may have
// work outstanding that a split would have to wait for.
//
// After a call that NCCL refused there is none: the other ranks may have had theirs, and NCCL, which
// matches sends and receives by their order alone, would give what they sent in it to this rank's next
// receive.
//
// Threads: as Rail.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "bindings/nccl/core.h"
#include "coll/nodes/rail.h"
#include "comm/device/device.h"
#include "fabric/node_map.h"
#include "group/group.h"

namespace braid::nccl {

class NcclRail final : public coll::nodes::Rail {
 public:
  /// Collective over all ranks of all nodes, which `group` has: the id of this rank's rail, which a
  /// rank of the first node makes. Empty, on all ranks: NCCL made none for some rail. Not ok: what
  /// the others were told is not known here.
  static Result<std::string> agree_on_id(const braid_nccl_rails& real, group::Group& group,
                                         const fabric::NodeMap& map, Deadline deadline);
  /// Asked about every millisecond: why nobody waits for a rail any more, else ok.
  using GivesUp = std::function<Status()>;
  /// Collective over the ranks of the rail. Not in a capture. Where `gives_up` says so, NCCL may go
  /// on with it in a thread that nobody waits for, which then aborts what has come of it.
  static Result<std::unique_ptr<NcclRail>> make(const braid_nccl_rails& real, const std::string& id,
                                                const fabric::NodeMap& map, int node,
                                                comm::Device& device, const GivesUp& gives_up);
  /// Gives the communicator back if nobody has ended it: what is enqueued must be done.
  ~NcclRail() override;

  Status exchange(const coll::nodes::Passage& passage, sys::Stream stream) override;
  Status all_gather(sys::DevicePtr send, sys::DevicePtr recv, uint64_t bytes,
                    sys::Stream stream) override;
  Status error() override;
  void abort() override;

 private:
  NcclRail(const braid_nccl_rails& real, void* comm) : real_(real), comm_(comm) {}
  Result<void*> usable() const;
  Status answered(const char* what, int result);
  Result<int> end_of(int result);

  const braid_nccl_rails real_;
  std::mutex mutex_;             // of the communicator's end
  std::atomic<void*> comm_;      // null: it has ended
  std::atomic<int> refused_{0};  // NCCL's answer to the call that it refused
  std::atomic<int> callers_{0};  // who is inside NCCL with the communicator
};

}  // namespace braid::nccl
