// Device: what the collectives of one GPU need, and who owns it. Made once per comm, at its first
// call with device memory; every rank of the comm makes its own, and all ranks of the node reach
// each other's.
//
//   kernels        what is launched, loaded once (kernel_cache.h)
//   arena          device memory that all peers can write: barrier signal pad, scratch, an area for every
//                  kind of kernel (arena.h)
//   registrations  users' own memory, where peers may write results in place (registrations.h)
//   order          of calls among each other, and our streams beside the caller's (call_order.h)
//   barriers       how ranks meet on their streams (barriers.h)
//   links          what carries messages: the base link, and those beside it (links/link.h)
//   faults         why kernels gave up, and the word that ends every wait (fault_watch.h)
//   call_watch     what observers are told of calls (call_watch.h)
//
// Work is only enqueued here. What fails later is found by the fault watch: it tells the other
// ranks, and the next call answers with it. The parts are reached by whoever has the Device, const
// or not: it owns them, and has no state of its own.
//
// Threads: one at a time, as Comm. faults().status() by any.
#pragma once

#include <memory>

#include "base/status.h"
#include "comm/device/arena.h"
#include "comm/device/barriers.h"
#include "comm/device/call_order.h"
#include "comm/device/call_watch.h"
#include "comm/device/fault_watch.h"
#include "comm/device/gpu_facts.h"
#include "comm/device/kernel_cache.h"
#include "comm/device/links/link_set.h"
#include "comm/device/links/registry.h"
#include "comm/device/registrations.h"
#include "comm/device/symmetric_address.h"
#include "comm/state.h"
#include "sys/cuda/api.h"
#include "transport/nvlink/team.h"

namespace braid::comm {

/// What a Device is made with.
struct DeviceRequest {
  int ordinal = 0;                     // this process's GPU for the comm
  ArenaRequest arena;                  // its scratch_bytes: at most; 0: what the option says
  sys::FabricLibrary* nics = nullptr;  // null: the real one, if a NIC is to be used
  LinkMaker links = make_links;
};

class Device {
 public:
  /// Collective. Errors: unavailable (no driver, no kernels in this build, GPUs that cannot reach
  /// each other, ranks on several hosts, no NIC where one must be), exhausted, driver; every rank
  /// gets the same verdict.
  static Result<std::unique_ptr<Device>> create(Comm::State& state, sys::Cuda& cuda,
                                                const DeviceRequest& request);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int rank() const { return team_.rank; }
  int size() const { return team_.size; }
  int ordinal() const { return ordinal_; }
  sys::Cuda& cuda() const { return cuda_; }
  const nvlink::Team& team() const { return team_; }
  const GpuFacts& gpus() const { return gpus_; }

  KernelCache& kernels() const { return *kernels_; }
  SymmetricArena& arena() const { return *arena_; }
  Registrations& registrations() const { return *registrations_; }
  CallOrder& order() const { return *order_; }
  Barriers& barriers() const { return *barriers_; }
  LinkSet& links() const { return *links_; }
  FaultWatch& faults() const { return *faults_; }
  CallWatch& call_watch() const { return *call_watch_; }

  /// Whether a call's kernels may store into peers' memory: not where the base link is held to a rate,
  /// which their stores would not heed.
  bool lets_kernels_store() const { return links_->base().throttle_gbps() <= 0; }
  /// A copy inside this GPU.
  Status copy(sys::Stream stream, sys::DevicePtr to, sys::DevicePtr from, uint64_t bytes) const {
    return bytes == 0 || to == from ? Status() : cuda_.copy_on_device(to, from, bytes, stream);
  }

  /// This rank's kernels that start from now on do nothing and tell no peer anything, however ready
  /// what they would have waited for is; those that wait go on waiting. For who is about to end what
  /// lies before them on their streams, another library's kernels perhaps, which leave no result. By
  /// any thread, in the GPU's context; waits for the GPU, but not long.
  void fail_kernels() const;

  /// Orders a call after the one before. The Status of an earlier fault, if any.
  Status begin(sys::Stream user);
  Status end(sys::Stream user);

  /// Waits for the comm's work, or ends it when the ranks do not part in peace, and closes the
  /// windows on the peers' memory; nothing may be enqueued afterwards. Our own memory stays until
  /// every rank has done this, and the destructor has run: peers hold it, by their mappings or as
  /// threads of this process (nvlink/lent_memory.h). False: a graph that was broken off is not
  /// through, as far as can be known. Its kernels may still look at everything here, so the object
  /// is given to leave_to_graph().
  bool detach(bool in_peace);

 private:
  Device(Comm::State& state, sys::Cuda& cuda, int ordinal);
  Status prepare(const DeviceRequest& request);  // what needs no peer
  Status prepare_arena(ArenaRequest request);
  std::string shape() const;
  Status meet(Deadline deadline);  // what ranks know of each other's GPUs
  bool are_graphs_through(bool in_peace);

  Comm::State& state_;
  sys::Cuda& cuda_;
  const int ordinal_;
  nvlink::Team team_{};
  GpuFacts gpus_;
  // In the order of their making, and undone in the opposite one, in the context of the GPU.
  std::unique_ptr<KernelCache> kernels_;
  std::unique_ptr<FaultWatch> faults_;
  std::unique_ptr<CallOrder> order_;
  std::unique_ptr<SymmetricArena> arena_;
  std::unique_ptr<Registrations> registrations_;
  std::unique_ptr<Barriers> barriers_;
  std::unique_ptr<CallWatch> call_watch_;
  std::unique_ptr<LinkSet> links_;
};

/// After Device::detach() said no: keeps it for as long as the process lives.
void leave_to_graph(std::shared_ptr<Device> device);

}  // namespace braid::comm
