// all_gather on the device: blocks by copy engines over NVLink, their ends through the host ring,
// and behind those what the NIC carries.
#include "coll/device/call.h"
#include "coll/device/collectives.h"
#include "coll/device/direct.h"
#include "coll/device/path.h"
#include "coll/device/rounds.h"

namespace braid::coll::device {

Status all_gather(comm::Device& device, sys::DevicePtr send, sys::DevicePtr recv, uint64_t count,
                  Dtype dtype, sys::Stream stream) {
  const int n = device.size();
  const uint64_t block = count * dtype_bytes(dtype);
  const sys::DevicePtr own = recv + static_cast<uint64_t>(device.rank()) * block;
  Call call(device, stream, {plan::Op::kAllGather, false, dtype, RedOp::kSum, 0, count});
  BRAID_RETURN_IF_ERROR(call.begin());
  if (n == 1) {
    BRAID_RETURN_IF_ERROR(device.copy(stream, own, send, block));
    return call.end();
  }
  if (fits_one_kernel(device, plan::Op::kAllGather, block)) {
    BRAID_RETURN_IF_ERROR(
        run_one_kernel(device, stream, {plan::Op::kAllGather, send, recv, block}));
    return call.end();
  }
  Exchange e;
  BRAID_ASSIGN_OR_RETURN(e.landing, device.find_landing(recv, static_cast<uint64_t>(n) * block));
  const uint64_t num_pieces = num_direct_pieces(device, plan::Op::kAllGather, block);
  if (e.landing.window == nullptr && num_pieces > 0) {
    BRAID_RETURN_IF_ERROR(run_direct_pieces(
        device, stream, {plan::Op::kAllGather, send, recv, block}, num_pieces,
        signature_of({plan::Op::kAllGather, dtype, RedOp::kSum, count}, e.landing)));
    return call.end();
  }
  const bool is_registered = e.landing.window != nullptr;
  BRAID_ASSIGN_OR_RETURN(const Cut cut, counted_cut(device, plan::Op::kAllGather, block,
                                                    is_registered ? 1 : kBesideTakeOut));
  const uint64_t nvlink = cut.nvlink_of(block);
  e.signature = signature_of(
      {plan::Op::kAllGather, dtype, RedOp::kSum, count, 0, false, cut.pcie, cut.rdma}, e.landing);
  e.bytes = nvlink;
  e.place_bytes = static_cast<uint64_t>(device.rank()) * block;
  Addresses host_places{}, rdma_places{};
  for (int r = 0; r < n; ++r) {
    const auto i = static_cast<size_t>(r);
    e.out[i] = send;
    host_places[i] = recv + static_cast<uint64_t>(r) * block + nvlink;
    rdma_places[i] = host_places[i] + cut.pcie;
  }
  const auto started = [&]() -> Status {
    BRAID_ASSIGN_OR_RETURN(const sys::Stream ring, call.fork(comm::Device::kHost));
    BRAID_RETURN_IF_ERROR(
        device.send_over_host(ring, all_to_everyone(device, send + nvlink, host_places, cut.pcie)));
    if (cut.rdma != 0) {
      BRAID_ASSIGN_OR_RETURN(const sys::Stream nic, call.fork(comm::Device::kRdma));
      BRAID_RETURN_IF_ERROR(device.send_over_rdma(
          nic, all_to_everyone(device, send + nvlink + cut.pcie, rdma_places, cut.rdma)));
    }
    // Behind the rings: the driver may copy by a kernel that leaves no room for their blocks.
    BRAID_ASSIGN_OR_RETURN(const sys::Stream copies, call.fork(comm::Device::kCopies));
    return cut.pcie != 0 && is_registered ? device.copy_beside_ring(copies, own, send, block)
                                          : device.copy(copies, own, send, block);
  };
  const auto finish = [&](sys::Stream side, const Piece& piece) {
    return take_out(device, side, piece, recv, block);
  };
  BRAID_RETURN_IF_ERROR(run_rounds(device, stream, e, started, finish));
  return call.end();
}

}  // namespace braid::coll::device
