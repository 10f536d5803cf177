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
  Real real{};
  find(library, Name::kCommInitRank, real.init_rank);
  find(library, Name::kCommInitRankConfig, real.init_rank_config);
  find(library, Name::kCommInitRankScalable, real.init_rank_scalable);
  find(library, Name::kCommInitAll, real.init_all);
  find(library, Name::kCommSplit, real.split);
  find(library, Name::kCommShrink, real.shrink);
  find(library, Name::kCommFinalize, real.finalize);
  find(library, Name::kCommDestroy, real.destroy);
  find(library, Name::kCommAbort, real.abort);
  find(library, Name::kCommRevoke, real.revoke);
  find(library, Name::kCommGetAsyncError, real.get_async_error);
  find(library, Name::kCommCount, real.count);
  find(library, Name::kCommUserRank, real.user_rank);
  find(library, Name::kCommCuDevice, real.device);
  find(library, Name::kGroupStart, real.group_start);
  find(library, Name::kGroupEnd, real.group_end);
  find(library, Name::kGroupSimulateEnd, real.group_simulate_end);
  find(library, Name::kAllReduce, real.all_reduce);
  find(library, Name::kAllGather, real.all_gather);
  find(library, Name::kReduceScatter, real.reduce_scatter);
  find(library, Name::kBroadcast, real.broadcast);
  find(library, Name::kAlltoAll, real.all_to_all);
  find(library, Name::kSend, real.send);
  find(library, Name::kRecv, real.recv);
  void* const text = library.find(symbol_of(Name::kGetLastError));
  real.get_last_error = text ? reinterpret_cast<const char* (*)(NcclComm)>(text) : no_text;
  return real;
}

}  // namespace braid::nccl
