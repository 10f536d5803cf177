#include "coll/device/path.h"

#include <algorithm>

#include "coll/device/direct.h"
#include "coll/device/lines.h"
#include "plan/wire.h"

namespace braid::coll::device {

namespace {

constexpr int kAgreeChannel = 0;

/// Tells an observer: how the call goes, and what the busiest rank sends by the plan.
void note_path(comm::Device& device, const PacketCall& call, const char* path) {
  const plan::Request request{call.op, message_bytes(device, call.op, call.bytes), device.size()};
  device.call_watch().took(path);
  device.call_watch().sends(comm::CallWatch::kNvlink,
                            static_cast<uint64_t>(plan::egress_bytes(request, false)));
}

}  // namespace

Path path_of(const comm::Device& device, plan::Op op, uint64_t bytes) {
  if (device.size() == 1) return Path::kNone;
  if (fits_packets(device, op, bytes)) return Path::kPackets;
  if (fits_lines(device, op, bytes)) return Path::kLines;
  return fits_direct(device, op, bytes) ? Path::kDirect : Path::kCopyEngines;
}

bool fits_one_kernel(const comm::Device& device, plan::Op op, uint64_t bytes) {
  return fits_thread_kernel(device, op, bytes) || path_of(device, op, bytes) == Path::kDirect;
}

bool fits_thread_kernel(const comm::Device& device, plan::Op op, uint64_t bytes) {
  const Path path = path_of(device, op, bytes);
  return path == Path::kPackets || path == Path::kLines;
}

Status run_one_kernel(comm::Device& device, sys::Stream stream, const PacketCall& call) {
  switch (path_of(device, call.op, call.bytes)) {
    case Path::kPackets:
      note_path(device, call, "packets");
      return run_packets(device, stream, call);
    case Path::kLines: note_path(device, call, "lines"); return run_lines(device, stream, call);
    case Path::kDirect: note_path(device, call, "direct"); return run_direct(device, stream, call);
    case Path::kNone:
    case Path::kCopyEngines: break;
  }
  return internal_error("{} bytes do not go by one kernel", call.bytes);
}

Status run_direct_pieces(comm::Device& device, sys::Stream stream, const PacketCall& call,
                         uint64_t num_pieces, uint64_t signature) {
  note_path(device, call, "direct");
  BRAID_RETURN_IF_ERROR(device.barrier(stream, kAgreeChannel, signature));
  const uint64_t piece = direct_piece_bytes(call.bytes, num_pieces);
  for (uint64_t begin = 0; begin < call.bytes; begin += piece) {
    PacketCall part = call;
    part.send += begin;
    part.recv += begin;
    part.bytes = std::min(piece, call.bytes - begin);
    part.stride_bytes = call.bytes;
    BRAID_RETURN_IF_ERROR(run_direct(device, stream, part));
  }
  return {};
}

}  // namespace braid::coll::device
