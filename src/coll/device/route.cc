#include "coll/device/route.h"

#include "coll/device/direct.h"
#include "coll/device/lines.h"
#include "coll/device/packets.h"
#include "plan/wire.h"

namespace braid::coll::device {

namespace {

constexpr int kAgreeChannel = 0;

/// Tells an observer: how the call goes, and what the busiest rank sends by the plan.
void note_path(comm::Device& device, const CollectiveCall& call, const char* path) {
  const plan::Request request{call.op, message_bytes(device, call.op, call.bytes), device.size()};
  device.call_watch().took(path);
  device.call_watch().sends(comm::CallWatch::kBaseLink,
                            static_cast<uint64_t>(plan::egress_bytes(request, false)));
}

/// Sums are made from operands in scratch; in place, a block of an all_to_all would be overwritten
/// before it was sent.
bool lands_in_place(const CollectiveCall& call) {
  if (call.op == plan::Op::kReduceScatter) return false;
  return call.op != plan::Op::kAllToAll || call.send != call.recv;
}

/// Behind a barrier, which finds out where ranks call something else, or one has registered its
/// memory. That one rank works in place is its own affair, so the signature does not tell.
Status agree_on_pieces(comm::Device& device, sys::Stream stream, const CollectiveCall& call) {
  return device.barriers().all(stream, kAgreeChannel, signature_of(call, {}, {}));
}

}  // namespace

Path path_of(const comm::Device& device, plan::Op op, uint64_t bytes) {
  if (device.size() == 1) return Path::kNone;
  if (fits_packets(device, op, bytes)) return Path::kPackets;
  if (fits_lines(device, op, bytes)) return Path::kLines;
  return fits_direct(device, op, bytes) ? Path::kDirect : Path::kCopyEngines;
}

Result<Route> choose_route(comm::Device& device, const CollectiveCall& call) {
  Route route{path_of(device, call.op, call.bytes), 0, {}};
  if (route.path != Path::kCopyEngines) return route;
  if (lands_in_place(call)) {
    const uint64_t bytes = message_bytes(device, call.op, call.bytes);
    BRAID_ASSIGN_OR_RETURN(route.landing, device.registrations().find(call.recv, bytes));
  }
  if (route.landing.window != nullptr) return route;
  route.num_pieces = num_direct_pieces(device, call.op, call.bytes);
  // A broadcast's have the other links beside them: they are a part of its way by links.
  if (route.num_pieces > 0 && call.op != plan::Op::kBroadcast) route.path = Path::kDirect;
  return route;
}

Status run_kernels(comm::Device& device, sys::Stream stream, const CollectiveCall& call,
                   const Route& route) {
  switch (route.path) {
    case Path::kPackets:
      note_path(device, call, "packets");
      return run_packets(device, stream, call);
    case Path::kLines: note_path(device, call, "lines"); return run_lines(device, stream, call);
    case Path::kDirect:
      note_path(device, call, "direct");
      if (route.num_pieces == 0) return run_direct(device, stream, call);
      BRAID_RETURN_IF_ERROR(agree_on_pieces(device, stream, call));
      return run_direct_pieces(device, stream, call, route.num_pieces);
    case Path::kNone:
    case Path::kCopyEngines: break;
  }
  return internal_error("{} bytes do not go by kernels", call.bytes);
}

}  // namespace braid::coll::device
