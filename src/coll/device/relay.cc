#include "coll/device/relay.h"

#include <algorithm>

#include "coll/device/direct.h"
#include "coll/relay/relay.h"
#include "sys/cuda/launch.h"

namespace braid::kernels {

std::span<const std::byte> relay_fatbin();

}  // namespace braid::kernels

namespace braid::coll::device {

namespace {

bool are_whole_vectors(const RelayArgs& args) {
  const auto bits_of = [](const std::byte* at) { return reinterpret_cast<uint64_t>(at); };
  uint64_t bits = bits_of(args.source);
  for (const std::byte* place : args.place) bits |= bits_of(place);
  return bits % 16 == 0;
}

/// Each rank's own choice. Blocks wait for those of other ranks: where several have one GPU, all
/// must find a place on it.
uint32_t num_blocks(const comm::Device& device, const RelayShape& shape) {
  const uint32_t most = relay_blocks(shape);
  return device.gpus().are_shared ? std::min(most, device.gpus().shared_blocks()) : most;
}

}  // namespace

comm::AreaRequest relay_area(int num_ranks) {
  const uint64_t bytes = num_ranks > 2 ? kRelayFlagBytes : 0;
  return {kRelayArea, bytes, bytes};
}

bool can_relay(const comm::Device& device) {
  return device.arena().area(kRelayArea).bytes != 0 && device.lets_kernels_store();
}

uint64_t relayed_bytes(const comm::Device& device, int root, uint64_t bytes) {
  const auto num_others = static_cast<uint64_t>(device.size() - 1);
  return device.rank() == root ? bytes : bytes / num_others * (num_others - 1);
}

Result<sys::Kernel> relay_kernel(comm::Device& device) {
  return device.kernels().find(kernels::relay_fatbin(), "braid_relay", bulk_shared_bytes(device));
}

Status run_relay(comm::Device& device, sys::Stream stream, const RelayCall& call) {
  if (call.bytes == 0) return {};
  const bool is_root = device.rank() == call.root;
  const comm::Area area = device.arena().area(kRelayArea);
  RelayArgs args{};
  args.team = device.team();
  for (int r = 0; r < device.size(); ++r) {
    args.flags[r] = sys::pointer_to<uint64_t>(area.at(r));
    if (r != call.root)
      args.place[r] = sys::pointer_to<std::byte>(call.place.at(r) + call.place_bytes);
  }
  args.state = sys::pointer_to<DirectState>(area.counters);
  if (is_root) args.source = sys::pointer_to<std::byte>(call.source);
  args.shape = relay_shape(call.bytes, device.size());
  args.root = call.root;
  args.uses_bulk = can_move_in_bulk(device) && are_whole_vectors(args) ? 1 : 0;
  device.call_watch().took("relay");
  device.call_watch().sends(comm::CallWatch::kBaseLink,
                            relayed_bytes(device, call.root, call.bytes));
  BRAID_ASSIGN_OR_RETURN(const sys::Kernel kernel, relay_kernel(device));
  const uint32_t shared_bytes = args.uses_bulk != 0 ? kBulkSharedBytes : 0;
  return sys::launch(device.cuda(), kernel,
                     {num_blocks(device, args.shape), kRelayThreads, shared_bytes}, stream, args);
}

}  // namespace braid::coll::device
