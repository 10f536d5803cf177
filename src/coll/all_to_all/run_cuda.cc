// all_to_all on the device. In place, a block may not be overwritten before it was sent. Kernels
// see to that by themselves; what they do not take goes through scratch, where a piece is taken out
// only after ours of that round left.
#include "coll/device/call.h"
#include "coll/device/collectives.h"
#include "coll/device/direct.h"
#include "coll/device/path.h"
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
  if (n > 1 && fits_one_kernel(device, plan::Op::kAllToAll, block)) {
    BRAID_RETURN_IF_ERROR(run_one_kernel(device, stream, {plan::Op::kAllToAll, send, recv, block}));
    return call.end();
  }
  Exchange e;
  if (!in_place) {
    BRAID_ASSIGN_OR_RETURN(e.landing, device.find_landing(recv, static_cast<uint64_t>(n) * block));
  }
  const uint64_t num_pieces = num_direct_pieces(device, plan::Op::kAllToAll, block);
  if (e.landing.window == nullptr && num_pieces > 0) {
    BRAID_RETURN_IF_ERROR(run_direct_pieces(
        device, stream, {plan::Op::kAllToAll, send, recv, block}, num_pieces,
        signature_of({plan::Op::kAllToAll, dtype, RedOp::kSum, count}, e.landing)));
    return call.end();
  }
  const bool is_registered = e.landing.window != nullptr;
  Cut cut;
  if (!in_place) {
    BRAID_ASSIGN_OR_RETURN(
        cut, counted_cut(device, plan::Op::kAllToAll, block, is_registered ? 1 : kBesideTakeOut));
  }
  const uint64_t nvlink = cut.nvlink_of(block);
  e.signature = signature_of(
      {plan::Op::kAllToAll, dtype, RedOp::kSum, count, 0, in_place, cut.pcie, cut.rdma}, e.landing);
  e.bytes = n > 1 ? nvlink : 0;
  e.place_bytes = offset_of(device.rank());
  Addresses host_sources{}, host_places{}, rdma_sources{}, rdma_places{};
  for (int r = 0; r < n; ++r) {
    const auto i = static_cast<size_t>(r);
    e.out[i] = send + offset_of(r);
    host_sources[i] = send + offset_of(r) + nvlink;
    host_places[i] = recv + offset_of(r) + nvlink;
    rdma_sources[i] = host_sources[i] + cut.pcie;
    rdma_places[i] = host_places[i] + cut.pcie;
  }
  const auto started = [&]() -> Status {
    BRAID_ASSIGN_OR_RETURN(const sys::Stream ring, call.fork(comm::Device::kHost));
    BRAID_RETURN_IF_ERROR(
        device.send_over_host(ring, each_to_each(device, host_sources, host_places, cut.pcie)));
    if (cut.rdma != 0) {
      BRAID_ASSIGN_OR_RETURN(const sys::Stream nic, call.fork(comm::Device::kRdma));
      BRAID_RETURN_IF_ERROR(
          device.send_over_rdma(nic, each_to_each(device, rdma_sources, rdma_places, cut.rdma)));
    }
    // Behind the rings: the driver may copy by a kernel that leaves no room for their blocks.
    BRAID_ASSIGN_OR_RETURN(const sys::Stream copies, call.fork(comm::Device::kCopies));
    const sys::DevicePtr from = send + offset_of(device.rank());
    const sys::DevicePtr to = recv + offset_of(device.rank());
    return cut.pcie != 0 && is_registered ? device.copy_beside_ring(copies, to, from, block)
                                          : device.copy(copies, to, from, block);
  };
  const auto finish = [&](sys::Stream side, const Piece& piece) {
    return take_out(device, side, piece, recv, block);
  };
  BRAID_RETURN_IF_ERROR(run_rounds(device, stream, e, started, finish));
  return call.end();
}

}  // namespace braid::coll::device
