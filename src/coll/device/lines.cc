#include "coll/device/lines.h"

#include <algorithm>

#include "base/rounding.h"
#include "coll/reduce/reduce_names.h"
#include "sys/cuda/launch.h"

namespace braid::kernels {

std::span<const std::byte> line_copies_fatbin();
std::span<const std::byte> line_floats_fatbin();
std::span<const std::byte> line_whole_fatbin();

}  // namespace braid::kernels

namespace braid::coll::device {

namespace {

constexpr uint64_t kAreaUnit = 256;

// Blocks wait for those of the same number on other ranks: where several ranks have one GPU, all
// must find a place on it.
uint32_t most_blocks(const comm::Device& device) {
  const uint32_t most = most_line_blocks(device.gpus().least_sms);
  return device.gpus().are_shared ? std::min(most, device.gpus().shared_blocks()) : most;
}

}  // namespace

Result<sys::Kernel> line_kernel(comm::Device& device, const CollectiveCall& call, int num_ranks) {
  const auto copies = [&](const char* few, const char* wide) {
    return device.kernels().find(kernels::line_copies_fatbin(), is_wide(num_ranks) ? wide : few);
  };
  switch (call.op) {
    case plan::Op::kAllGather:
      return copies("braid_lines_all_gather", "braid_lines_all_gather_wide");
    case plan::Op::kAllToAll:
      return copies("braid_lines_all_to_all", "braid_lines_all_to_all_wide");
    case plan::Op::kBroadcast: return copies("braid_lines_broadcast", "braid_lines_broadcast_wide");
    case plan::Op::kAllReduce:
    case plan::Op::kReduceScatter: break;
  }
  return device.kernels().find(
      is_whole(call.dtype) ? kernels::line_whole_fatbin() : kernels::line_floats_fatbin(),
      line_reduce_kernel_name(call.dtype, call.redop));
}

Result<sys::Kernel> line_kernel(comm::Device& device, const CollectiveCall& call) {
  return line_kernel(device, call, device.size());
}

comm::AreaRequest line_area(const Config& config, int num_ranks) {
  const uint64_t most = config.bytes("BRAID_GPU_LINES");
  const uint64_t bytes =
      most == 0 || num_ranks < 2 ? 0 : round_up(line_area_bytes(most, num_ranks), kAreaUnit);
  return {kLineArea, bytes, bytes, most, true};
}

bool fits_lines(const comm::Device& device, plan::Op op, uint64_t bytes) {
  if (!device.lets_kernels_store()) return false;
  const comm::Area area = device.arena().area(kLineArea);
  return area.limit_bytes != 0 &&
         message_bytes(device, op, bytes) <= line_most_bytes(op, area.limit_bytes, device.size()) &&
         line_call_bytes(op, bytes, device.size()) <= area.bytes;
}

Status run_lines(comm::Device& device, sys::Stream stream, const CollectiveCall& call) {
  const PacketShape shape = lines_shape(call.op, call.bytes, device.size(), most_blocks(device));
  const comm::Area area = device.arena().area(kLineArea);
  PacketArgs args{};
  args.team = device.team();
  for (int r = 0; r < device.size(); ++r)
    args.packets.area[r] = sys::pointer_to<std::byte>(area.at(r));
  args.packets.state = sys::pointer_to<PacketState>(area.counters);
  args.packets.capacity_bytes = area.bytes;
  args.send = sys::pointer_to<std::byte>(call.send);
  args.recv = sys::pointer_to<std::byte>(call.recv);
  args.bytes = call.bytes;
  args.path = shape.path;
  args.root = call.root;
  BRAID_ASSIGN_OR_RETURN(const sys::Kernel kernel, line_kernel(device, call));
  return sys::launch(device.cuda(), kernel, {shape.num_blocks, shape.num_threads, 0}, stream, args);
}

}  // namespace braid::coll::device
