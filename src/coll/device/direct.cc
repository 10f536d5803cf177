#include "coll/device/direct.h"

#include <algorithm>

#include "coll/reduce/reduce_names.h"
#include "sys/cuda/launch.h"

namespace braid::kernels {

std::span<const std::byte> direct_copies_fatbin();
std::span<const std::byte> direct_floats_fatbin();
std::span<const std::byte> direct_whole_fatbin();

}  // namespace braid::kernels

namespace braid::coll::device {

namespace {

/// Ranks on one GPU run at the same time where they are threads of a process, or processes under MPS:
/// their blocks, one on a multiprocessor, would not all find one while they wait for each other.
bool is_crowded(const comm::Device& device) { return device.gpus().are_shared; }

uint64_t stride_of(const CollectiveCall& call) {
  return call.stride_bytes != 0 ? call.stride_bytes : call.bytes;
}

/// Bulk copies move whole vectors between whole vectors. A rank may push in bulk and another not.
bool can_push_in_bulk(const comm::Device& device, const CollectiveCall& call) {
  constexpr uint64_t kUnit = 16;
  const bool has_blocks = call.op == plan::Op::kAllToAll || call.op == plan::Op::kReduceScatter;
  return can_move_in_bulk(device) && call.send % kUnit == 0 &&
         (!has_blocks || stride_of(call) % kUnit == 0);
}

}  // namespace

uint32_t bulk_shared_bytes(const comm::Device& device) {
  const bool has_room = device.gpus().most_shared_bytes >= kBulkSharedBytes + kDirectStaticBytes;
  return has_room ? kBulkSharedBytes : 0;
}

bool can_move_in_bulk(const comm::Device& device) {
  return bulk_shared_bytes(device) != 0 && !is_crowded(device);
}

Result<sys::Kernel> direct_kernel(comm::Device& device, const CollectiveCall& call) {
  const uint32_t shared_bytes = bulk_shared_bytes(device);
  const auto copies = [&](const char* name) {
    return device.kernels().find(kernels::direct_copies_fatbin(), name, shared_bytes);
  };
  switch (call.op) {
    case plan::Op::kAllGather: return copies("braid_direct_all_gather");
    case plan::Op::kAllToAll: return copies("braid_direct_all_to_all");
    case plan::Op::kBroadcast: return copies("braid_direct_broadcast");
    case plan::Op::kAllReduce:
    case plan::Op::kReduceScatter: break;
  }
  return device.kernels().find(
      is_whole(call.dtype) ? kernels::direct_whole_fatbin() : kernels::direct_floats_fatbin(),
      direct_reduce_kernel_name(call.dtype, call.redop), shared_bytes);
}

comm::AreaRequest direct_area_of(uint64_t most, int num_ranks) {
  const uint64_t bytes = most == 0 || num_ranks < 2 ? 0 : direct_area_bytes(most, num_ranks);
  return {kDirectArea, bytes, std::min(bytes, kDirectFlagBytes), most};
}

comm::AreaRequest direct_area(const Config& config, int num_ranks) {
  return direct_area_of(config.bytes("BRAID_GPU_DIRECT"), num_ranks);
}

bool fits_direct(const comm::Device& device, plan::Op op, uint64_t bytes) {
  if (!device.lets_kernels_store()) return false;
  const comm::Area area = device.arena().area(kDirectArea);
  return area.bytes != 0 &&
         message_bytes(device, op, bytes) <= direct_most_bytes(op, area.limit_bytes, device.size());
}

uint64_t num_direct_pieces(const comm::Device& device, plan::Op op, uint64_t bytes) {
  if (!device.lets_kernels_store()) return 0;
  return direct_pieces(op, bytes, device.arena().area(kDirectArea).bytes, device.size());
}

Status run_direct(comm::Device& device, sys::Stream stream, const CollectiveCall& call) {
  const comm::Area area = device.arena().area(kDirectArea);
  DirectArgs args{};
  args.team = device.team();
  for (int r = 0; r < device.size(); ++r)
    args.direct.area[r] = sys::pointer_to<std::byte>(area.at(r));
  args.direct.state = sys::pointer_to<DirectState>(area.counters);
  args.direct.half_bytes = direct_half_bytes(area.bytes);
  args.send = sys::pointer_to<std::byte>(call.send);
  args.recv = sys::pointer_to<std::byte>(call.recv);
  args.bytes = call.bytes;
  args.stride_bytes = stride_of(call);
  args.root = call.root;
  args.is_in_place = call.op == plan::Op::kAllToAll && call.send == call.recv ? 1 : 0;
  args.uses_bulk = can_push_in_bulk(device, call) ? 1 : 0;
  args.shape = direct_shape(call.op, call.bytes, device.size(), args.uses_bulk != 0);
  if (is_crowded(device)) args.shape = with_fewer_blocks(args.shape, device.gpus().shared_blocks());
  if (call.op == plan::Op::kBroadcast)
    args.shape = for_root(args.shape, device.rank() == call.root);
  const uint32_t shared_bytes = args.uses_bulk != 0 ? kBulkSharedBytes : 0;
  BRAID_ASSIGN_OR_RETURN(const sys::Kernel kernel, direct_kernel(device, call));
  return sys::launch(device.cuda(), kernel, {args.shape.num_blocks(), kDirectThreads, shared_bytes},
                     stream, args);
}

Status run_direct_pieces(comm::Device& device, sys::Stream stream, const CollectiveCall& call,
                         uint64_t num_pieces) {
  const uint64_t piece = direct_piece_bytes(call.bytes, num_pieces);
  for (uint64_t begin = 0; begin < call.bytes; begin += piece) {
    CollectiveCall part = call;
    part.send += begin;
    part.recv += begin;
    part.bytes = std::min(piece, call.bytes - begin);
    part.stride_bytes = call.bytes;
    BRAID_RETURN_IF_ERROR(run_direct(device, stream, part));
  }
  return {};
}

}  // namespace braid::coll::device
