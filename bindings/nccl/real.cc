#include "bindings/nccl/real.h"

#include "bindings/nccl/library.h"
#include "bindings/nccl/names.h"

namespace braid::nccl {

namespace {

template <typename... Args>
NcclResult absent(Args...) {
  return NcclResult::kInvalidUsage;
}

template <typename... Args>
void find(const Library& library, Name name, NcclResult (*&function)(Args...)) {
  void* const found = library.find(symbol_of(name));
  function = found ? reinterpret_cast<NcclResult (*)(Args...)>(found) : absent<Args...>;
}

const char* no_text(NcclComm) { return ""; }

}  // namespace

Real load_real(const Library& library) {
  Real loaded{};
  find(library, Name::kGetVersion, loaded.version);
  find(library, Name::kGetUniqueId, loaded.unique_id);
  find(library, Name::kCommInitRank, loaded.init_rank);
  find(library, Name::kCommInitRankConfig, loaded.init_rank_config);
  find(library, Name::kCommInitRankScalable, loaded.init_rank_scalable);
  find(library, Name::kCommInitAll, loaded.init_all);
  find(library, Name::kCommSplit, loaded.split);
  find(library, Name::kCommShrink, loaded.shrink);
  find(library, Name::kCommFinalize, loaded.finalize);
  find(library, Name::kCommDestroy, loaded.destroy);
  find(library, Name::kCommAbort, loaded.abort);
  find(library, Name::kCommRevoke, loaded.revoke);
  find(library, Name::kMemAlloc, loaded.mem_alloc);
  find(library, Name::kMemFree, loaded.mem_free);
  find(library, Name::kCommWindowRegister, loaded.window_register);
  find(library, Name::kCommWindowDeregister, loaded.window_deregister);
  find(library, Name::kCommGetAsyncError, loaded.get_async_error);
  find(library, Name::kCommCount, loaded.count);
  find(library, Name::kCommUserRank, loaded.user_rank);
  find(library, Name::kCommCuDevice, loaded.device);
  find(library, Name::kGroupStart, loaded.group_start);
  find(library, Name::kGroupEnd, loaded.group_end);
  find(library, Name::kGroupSimulateEnd, loaded.group_simulate_end);
  find(library, Name::kAllReduce, loaded.all_reduce);
  find(library, Name::kAllGather, loaded.all_gather);
  find(library, Name::kReduceScatter, loaded.reduce_scatter);
  find(library, Name::kBroadcast, loaded.broadcast);
  find(library, Name::kAlltoAll, loaded.all_to_all);
  loaded.lacks_all_to_all = library.find(symbol_of(Name::kAlltoAll)) == nullptr;
  find(library, Name::kSend, loaded.send);
  find(library, Name::kRecv, loaded.recv);
  void* const text = library.find(symbol_of(Name::kGetLastError));
  loaded.get_last_error = text ? reinterpret_cast<const char* (*)(NcclComm)>(text) : no_text;
  return loaded;
}

}  // namespace braid::nccl
