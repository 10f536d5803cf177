#include "coll/device/call.h"

#include <algorithm>

namespace braid::coll::device {

namespace {

constexpr uint64_t kHostFromBytes = 4 << 20;  // a block below it ends before the ring has filled

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 29);
}

bool can_use_host(uint64_t block_bytes) {
  return block_bytes >= kHostFromBytes && block_bytes % 16 == 0;
}

void add_flow(pcie::Flows& flows, const pcie::Flow& flow) { flows.flow[flows.num_flows++] = flow; }

}  // namespace

uint64_t signature_of(const CollectiveCall& call, const comm::Landing& landing, const Cut& cut,
                      bool is_in_place) {
  uint64_t hash = mix(1, static_cast<uint64_t>(call.op));
  hash = mix(hash, static_cast<uint64_t>(call.dtype));
  hash = mix(hash, static_cast<uint64_t>(call.redop));
  hash = mix(hash, call.count());
  hash = mix(hash, static_cast<uint64_t>(call.root));
  hash = mix(hash, is_in_place ? 1 : 0);
  hash = mix(hash, cut.pcie);
  hash = mix(hash, cut.rdma);
  hash = mix(hash, landing.number);  // two registrations may have the same offsets
  return mix(hash, landing.offset_bytes);
}

uint64_t signature_of(const PairMeaning& meaning) {
  constexpr uint64_t kPairs = 2;  // where the other one begins with 1
  uint64_t hash = mix(kPairs, static_cast<uint64_t>(meaning.op));
  hash = mix(hash, static_cast<uint64_t>(meaning.dtype));
  hash = mix(hash, meaning.there_bytes);
  hash = mix(hash, meaning.back_bytes);
  hash = mix(hash, meaning.there_host_bytes);
  return mix(hash, meaning.back_host_bytes);
}

Result<sys::Stream> Call::fork(comm::Device::Side side) {
  const sys::Stream stream = device_.side(side);
  BRAID_RETURN_IF_ERROR(device_.after(stream, stream_));
  is_forked_[side] = true;
  return stream;
}

Status Call::end() {
  if (is_forked_[comm::Device::kHost])
    BRAID_RETURN_IF_ERROR(device_.note(comm::Moment::kHostDone, device_.side(comm::Device::kHost)));
  for (size_t i = 0; i < is_forked_.size(); ++i)
    if (is_forked_[i])
      BRAID_RETURN_IF_ERROR(
          device_.after(stream_, device_.side(static_cast<comm::Device::Side>(i))));
  is_open_ = false;
  device_.call_watch().end(stream_, true);
  return device_.end(stream_);
}

uint64_t most_host_bytes(const comm::Device& device, plan::Op op, uint64_t block_bytes) {
  switch (op) {
    case plan::Op::kAllReduce: return device.scratch_bytes() / 8;  // of a segment
    case plan::Op::kReduceScatter:
      return device.scratch_bytes() / 4 / static_cast<uint64_t>(device.size());
    default: return block_bytes;
  }
}

uint64_t host_part(const comm::Device& device, plan::Op op, uint64_t block_bytes, double used) {
  if (!can_use_host(block_bytes)) return 0;
  return comm::host_part_bytes(block_bytes, device.host_parts(op, block_bytes),
                               most_host_bytes(device, op, block_bytes), used);
}

Result<uint64_t> counted_host_part(comm::Device& device, plan::Op op, uint64_t block_bytes,
                                   const Counted& how) {
  if (can_use_host(block_bytes)) {
    const uint64_t most = most_host_bytes(device, op, block_bytes);
    BRAID_RETURN_IF_ERROR(
        device.count_call({op, block_bytes, most, false, how.used, how.num_segments}));
  }
  return host_part(device, op, block_bytes, how.used);
}

Cut with_rdma(const comm::Device& device, plan::Op op, uint64_t block_bytes, uint64_t pcie) {
  if (!can_use_host(block_bytes)) return {pcie, 0};
  const auto pcie_parts =
      static_cast<uint32_t>(static_cast<double>(pcie) / static_cast<double>(block_bytes) *
                            static_cast<double>(plan::kWhole));
  const uint64_t wanted = device.rdma().part(op, block_bytes, pcie_parts);
  return {pcie, std::min(wanted, (block_bytes - pcie) / kUnit * kUnit)};
}

Result<Cut> counted_cut(comm::Device& device, plan::Op op, uint64_t block_bytes, double used) {
  BRAID_ASSIGN_OR_RETURN(const uint64_t pcie,
                         counted_host_part(device, op, block_bytes, {used, 1}));
  return with_rdma(device, op, block_bytes, pcie);
}

pcie::Flows all_to_everyone(const comm::Device& device, sys::DevicePtr source,
                            const std::array<sys::DevicePtr, nvlink::kMostRanks>& destinations,
                            uint64_t bytes) {
  pcie::Flows flows{};
  if (bytes == 0) return flows;
  const int everyone = device.size();
  if (source != 0)
    add_flow(flows, {device.rank(), everyone, sys::pointer_to<std::byte>(source), nullptr, bytes});
  for (int step = 1; step < device.size(); ++step) {
    const int peer = (device.rank() + step) % device.size();
    const sys::DevicePtr to = destinations[static_cast<size_t>(peer)];
    if (to != 0) add_flow(flows, {peer, everyone, nullptr, sys::pointer_to<std::byte>(to), bytes});
  }
  flows.num_lanes = device.host_lanes(flows.num_flows);
  return flows;
}

pcie::Flows each_to_each(const comm::Device& device,
                         const std::array<sys::DevicePtr, nvlink::kMostRanks>& sources,
                         const std::array<sys::DevicePtr, nvlink::kMostRanks>& destinations,
                         uint64_t bytes) {
  pcie::Flows flows{};
  if (bytes == 0) return flows;
  for (int step = 1; step < device.size(); ++step) {
    const int peer = (device.rank() + step) % device.size();
    const auto index = static_cast<size_t>(peer);
    add_flow(flows,
             {device.rank(), peer, sys::pointer_to<std::byte>(sources[index]), nullptr, bytes});
    add_flow(flows, {peer, device.rank(), nullptr, sys::pointer_to<std::byte>(destinations[index]),
                     bytes});
  }
  flows.num_lanes = device.host_lanes(flows.num_flows);
  return flows;
}

}  // namespace braid::coll::device
