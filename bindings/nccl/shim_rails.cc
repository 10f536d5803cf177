// The real library as the core's way between nodes: communicators of the core's own, which no hook of
// ours sees, and calls on them. The core makes them where all ranks are at the same call of the
// program's communicator, and calls them at the place of the program's calls, so their order is the
// program's own.
#include <climits>
#include <cstring>

#include "base/log.h"
#include "bindings/nccl/comm_config.h"
#include "bindings/nccl/inside.h"
#include "bindings/nccl/shim.h"

namespace braid::nccl {

namespace {

constexpr int kBytes = 1;  // ncclUint8

}  // namespace

NcclResult Shim::make_id(UniqueId* id) {
  NcclResult made;
  {
    const ReentryGuard guard;
    made = real_.unique_id(id);
  }
  const bool is_possible = !passes() && settings_.is_on && settings_.nodes != Nodes::kOff && signs_;
  if (!is_possible || made != NcclResult::kSuccess || id == nullptr) return made;
  const braid_nccl_core* const core = open_core_();
  ErrorText why;
  if (core != nullptr && core->mark(id->bytes, why) != 0)
    log::info("nccl", "communicators of this id are left to NCCL over several nodes: {}",
              why.text());
  return made;
}

/// One group of a send and a receive.
NcclResult Shim::exchange(NcclComm rail, const braid_nccl_passage& passage, CudaStream stream) {
  NcclResult result = real_.group_start();
  if (!is_good(result)) return result;
  if (passage.send_bytes > 0)
    result = real_.send(passage.send, passage.send_bytes, kBytes, passage.to, rail, stream);
  if (is_good(result) && passage.recv_bytes > 0)
    result = real_.recv(passage.recv, passage.recv_bytes, kBytes, passage.from, rail, stream);
  const NcclResult ended = real_.group_end();
  return is_good(result) ? ended : result;
}

/// An all_gather by sends and receives, as every other call of a rail is one: NCCL's own would connect
/// the communicator once more, with buffers of 9 MiB each way for each block.
NcclResult Shim::give_all(NcclComm rail, const void* send, void* recv, uint64_t bytes,
                          CudaStream stream) {
  int num_ranks = 0;
  NcclResult result = real_.count(rail, &num_ranks);
  if (is_good(result)) result = real_.group_start();
  if (!is_good(result)) return result;
  for (int peer = 0; peer < num_ranks && is_good(result); ++peer) {
    result = real_.send(send, bytes, kBytes, peer, rail, stream);
    if (is_good(result))
      result = real_.recv(static_cast<char*>(recv) + static_cast<uint64_t>(peer) * bytes, bytes,
                          kBytes, peer, rail, stream);
  }
  const NcclResult ended = real_.group_end();
  return is_good(result) ? ended : result;
}

const braid_nccl_rails* Shim::rails() {
  std::call_once(rails_once_, [this] {
    rails_.context = this;
    if (real_.version(&rails_.version) != NcclResult::kSuccess) rails_.version = 0;
    rails_.make_id = [](void* context, char* id) {
      const ReentryGuard guard;
      return static_cast<int>(
          static_cast<Shim*>(context)->real_.unique_id(reinterpret_cast<UniqueId*>(id)));
    };
    rails_.make = [](void* context, const char* id, int num_ranks, int rank, void** comm) {
      Shim& shim = *static_cast<Shim*>(context);
      UniqueId of_rail;
      std::memcpy(of_rail.bytes, id, sizeof of_rail.bytes);
      RailConfig config = config_of_rails(num_ranks);
      const ReentryGuard guard;
      NcclResult made = shim.real_.init_rank_config(comm, num_ranks, of_rail, rank, &config);
      if (made == NcclResult::kInvalidUsage)  // a library before 2.14
        made = shim.real_.init_rank(comm, num_ranks, of_rail, rank);
      return static_cast<int>(is_good(made) ? shim.end_of(*comm, made) : made);
    };
    rails_.exchange = [](void* context, void* comm, const braid_nccl_passage* passage,
                         void* stream) {
      Shim& shim = *static_cast<Shim*>(context);
      const ReentryGuard guard;
      return static_cast<int>(shim.exchange(comm, *passage, stream));
    };
    rails_.all_gather = [](void* context, void* comm, const void* send, void* recv, uint64_t bytes,
                           void* stream) {
      Shim& shim = *static_cast<Shim*>(context);
      const ReentryGuard guard;
      return static_cast<int>(shim.give_all(comm, send, recv, bytes, stream));
    };
    rails_.error = [](void* context, void* comm) {
      NcclResult error = NcclResult::kSuccess;
      const NcclResult asked = static_cast<Shim*>(context)->real_.get_async_error(comm, &error);
      return static_cast<int>(asked == NcclResult::kSuccess ? error : asked);
    };
    rails_.abort = [](void* context, void* comm) {
      const ReentryGuard guard;
      return static_cast<int>(static_cast<Shim*>(context)->real_.abort(comm));
    };
    rails_.destroy = [](void* context, void* comm) {
      const ReentryGuard guard;
      return static_cast<int>(static_cast<Shim*>(context)->real_.destroy(comm));
    };
  });
  return &rails_;
}

}  // namespace braid::nccl
