// Which way a call goes, alike on all ranks, decided once: the one place that says so, for the calls
// themselves and for explain(). And the calls that are kernels and nothing else.
#pragma once

#include "base/status.h"
#include "coll/device/call.h"
#include "coll/device/collective_call.h"
#include "comm/device/device.h"
#include "plan/plan.h"

namespace braid::coll::device {

enum class Path { kNone, kPackets, kLines, kDirect, kCopyEngines };

/// `bytes` as CollectiveCall counts them. kNone: there is one rank.
Path path_of(const comm::Device& device, plan::Op op, uint64_t bytes);

struct Route {
  Path path = Path::kNone;
  uint64_t num_pieces = 0;  // direct kernels in a row behind a barrier; 0: one without, or none
  comm::SymmetricAddress
      landing;  // kCopyEngines: where the results of all ranks land in place, if anywhere

  bool is_by_kernels() const { return path != Path::kNone && path != Path::kCopyEngines; }
  /// Whether the threads of its kernel receive into what they alone have sent: those may work in
  /// place where blocks change their place, and copy a root's own.
  bool is_by_threads() const { return path == Path::kPackets || path == Path::kLines; }
};

/// invalid_argument where `recv` was registered and is no longer what it was: nothing was enqueued.
Result<Route> choose_route(comm::Device& device, const CollectiveCall& call);

/// Enqueues a call whose route is_by_kernels().
Status run_kernels(comm::Device& device, sys::Stream stream, const CollectiveCall& call,
                   const Route& route);

/// One call from its begin to its end: by kernels where its route says so, else by
/// `by_links(Call&, const comm::SymmetricAddress&)`, which enqueues it by copy engines and the links beside.
template <typename ByLinks>
Status run_call(comm::Device& device, sys::Stream stream, const CollectiveCall& what,
                const ByLinks& by_links) {
  Call call(device, stream, shape_of(what));
  BRAID_RETURN_IF_ERROR(call.begin());
  BRAID_ASSIGN_OR_RETURN(const Route route, choose_route(device, what));
  BRAID_RETURN_IF_ERROR(route.is_by_kernels() ? run_kernels(device, stream, what, route)
                                              : by_links(call, route.landing));
  return call.end();
}

}  // namespace braid::coll::device
