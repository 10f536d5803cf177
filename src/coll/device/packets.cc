#include "coll/device/packets.h"

#include <algorithm>

#include "coll/reduce/reduce_names.h"
#include "sys/cuda/launch.h"

namespace braid::kernels {

std::span<const std::byte> copies_fatbin();
std::span<const std::byte> packets_reduce_floats_fatbin();
std::span<const std::byte> packets_reduce_whole_fatbin();

}  // namespace braid::kernels

namespace braid::coll::device {

namespace {

// Blocks wait for those of the same number on other ranks: where several ranks have one GPU, all
// must find a place on it, two on a multiprocessor (their __launch_bounds__).
PacketShape shape_of(const comm::Device& device, const CollectiveCall& call) {
  PacketShape shape = packets_shape(call.op, call.bytes, device.size());
  if (device.gpus().are_shared)
    shape.num_blocks = std::min(shape.num_blocks, 2 * device.gpus().shared_blocks());
  return shape;
}

}  // namespace

Result<sys::Kernel> packet_kernel(comm::Device& device, const CollectiveCall& call) {
  switch (call.op) {
    case plan::Op::kAllGather:
      return device.kernels().find(kernels::copies_fatbin(), "braid_packets_all_gather");
    case plan::Op::kAllToAll:
      return device.kernels().find(kernels::copies_fatbin(), "braid_packets_all_to_all");
    case plan::Op::kBroadcast:
      return device.kernels().find(kernels::copies_fatbin(), "braid_packets_broadcast");
    case plan::Op::kAllReduce:
    case plan::Op::kReduceScatter: break;
  }
  return device.kernels().find(is_whole(call.dtype) ? kernels::packets_reduce_whole_fatbin()
                                                    : kernels::packets_reduce_floats_fatbin(),
                               packet_reduce_kernel_name(call.dtype, call.redop));
}

bool is_whole(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
    case Dtype::kFloat32:
    case Dtype::kFloat64:
    case Dtype::kFloat8E4m3:
    case Dtype::kFloat8E5m2: return false;
    default: return true;
  }
}

uint64_t message_bytes(const comm::Device& device, plan::Op op, uint64_t bytes) {
  return plan::is_one_buffer(op) ? bytes : bytes * static_cast<uint64_t>(device.size());
}

comm::AreaRequest packet_area(const Config& config, int num_ranks) {
  const uint64_t most = config.bytes("BRAID_GPU_PACKETS");
  const uint64_t bytes = packet_area_bytes(2 * most, num_ranks) / 256 * 256 + 256;
  return {kPacketArea, bytes, bytes, most};
}

// The limit is on what arrives at a rank, as twice the bytes of an all-gather among two. An
// all-reduce receives its whole message; a broadcast too, but among two it sends nothing meanwhile.
bool fits_packets(const comm::Device& device, plan::Op op, uint64_t bytes) {
  uint64_t weighed = message_bytes(device, op, bytes);
  if (op == plan::Op::kAllReduce) weighed *= 2;
  if (op == plan::Op::kBroadcast && device.size() == 2) weighed /= 2;
  const comm::Area area = device.arena().area(kPacketArea);
  return weighed <= area.limit_bytes &&
         packet_call_bytes(op, bytes, device.size()) + 256 <= area.bytes;
}

Status run_packets(comm::Device& device, sys::Stream stream, const CollectiveCall& call) {
  const PacketShape shape = shape_of(device, call);
  const comm::Area area = device.arena().area(kPacketArea);
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
  BRAID_ASSIGN_OR_RETURN(const sys::Kernel kernel, packet_kernel(device, call));
  return sys::launch(device.cuda(), kernel, {shape.num_blocks, shape.num_threads, 0}, stream, args);
}

}  // namespace braid::coll::device
