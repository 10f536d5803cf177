// all_to_all on the device. In place, a block may not be overwritten before it was sent: then
// everything goes through scratch, where a piece is taken out only after ours of that round left.
#include "coll/device/call.h"
#include "coll/device/collectives.h"
#include "coll/device/direct.h"
#include "coll/device/rounds.h"

namespace braid::coll::device {

Status all_to_all(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv, uint64_t count,
                  Dtype dtype, sys::Stream stream) {
  const int n = device.size();
  const uint64_t block = count * dtype_bytes(dtype);
  const auto offset_of = [&](int rank) { return static_cast<uint64_t>(rank) * block; };
  const bool in_place = send == recv;
  Call call(device, stream, {plan::Op::kAllToAll, false, dtype, RedOp::kSum, 0, count});
  BRAID_RETURN_IF_ERROR(call.begin());
  if (n > 1 && !in_place && fits_one_kernel(device, PacketOp::kAllToAll, block)) {
    BRAID_RETURN_IF_ERROR(run_one_kernel(device, stream, {PacketOp::kAllToAll, send, recv, block}));
    return call.end();
  }
  Exchange e;
  if (!in_place) {
    BRAID_ASSIGN_OR_RETURN(e.landing, device.find_landing(recv, static_cast<uint64_t>(n) * block));
  }
  uint64_t host = 0;
  if (!in_place) {
    BRAID_ASSIGN_OR_RETURN(host, counted_host_part(device, plan::Op::kAllToAll, block));
  }
  const uint64_t nvlink = block - host;
  e.signature =
      signature_of({plan::Op::kAllToAll, dtype, RedOp::kSum, count, 0, in_place, host}, e.landing);
  e.bytes = n > 1 ? nvlink : 0;
  e.place_bytes = offset_of(device.rank());
  Addresses host_sources{}, host_places{};
  for (int r = 0; r < n; ++r) {
    const auto i = static_cast<size_t>(r);
    e.out[i] = send + offset_of(r);
    host_sources[i] = send + offset_of(r) + nvlink;
    host_places[i] = recv + offset_of(r) + nvlink;
  }
  const auto started = [&]() -> Status {
    BRAID_ASSIGN_OR_RETURN(const sys::Stream copies, call.fork(comm::Device::kCopies));
    BRAID_RETURN_IF_ERROR(device.copy(copies, recv + offset_of(device.rank()),
                                      send + offset_of(device.rank()), block));
    BRAID_ASSIGN_OR_RETURN(const sys::Stream ring, call.fork(comm::Device::kHost));
    return device.send_over_host(ring, each_to_each(device, host_sources, host_places, host));
  };
  const auto finish = [&](sys::Stream side, const Piece& piece) {
    return take_out(device, side, piece, recv, block);
  };
  BRAID_RETURN_IF_ERROR(run_rounds(device, stream, e, started, finish));
  return call.end();
}

}  // namespace braid::coll::device
