#include "coll/device/call.h"

#include <algorithm>

namespace braid::coll::device {

namespace {

constexpr uint64_t kBesideFromBytes = 4 << 20;  // a block below it ends before a ring has filled

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 29);
}

bool can_be_cut(uint64_t block_bytes) {
  return block_bytes >= kBesideFromBytes && block_bytes % 16 == 0;
}

}  // namespace

uint64_t signature_of(const CollectiveCall& call, const comm::SymmetricAddress& landing,
                      const Cut& cut, bool is_in_place) {
  uint64_t hash = mix(1, static_cast<uint64_t>(call.op));
  hash = mix(hash, static_cast<uint64_t>(call.dtype));
  hash = mix(hash, static_cast<uint64_t>(call.redop));
  hash = mix(hash, static_cast<uint64_t>(call.bit_op));
  hash = mix(hash, call.count());
  hash = mix(hash, static_cast<uint64_t>(call.root));
  hash = mix(hash, is_in_place ? 1 : 0);
  for (const uint64_t bytes : cut.beside) hash = mix(hash, bytes);
  hash = mix(hash, landing.number);  // two registrations may have the same offsets
  return mix(hash, landing.offset_bytes);
}

uint64_t signature_of(const PairMeaning& meaning) {
  constexpr uint64_t kPairs = 2;  // where the other one begins with 1
  uint64_t hash = mix(kPairs, static_cast<uint64_t>(meaning.op));
  hash = mix(hash, static_cast<uint64_t>(meaning.dtype));
  hash = mix(hash, meaning.there_bytes);
  hash = mix(hash, meaning.back_bytes);
  hash = mix(hash, meaning.there_beside_bytes);
  return mix(hash, meaning.back_beside_bytes);
}

Result<sys::Stream> Call::fork(comm::CallOrder::Side side) {
  const sys::Stream stream = device_.order().side(side);
  BRAID_RETURN_IF_ERROR(device_.order().after(stream, stream_));
  is_forked_[side] = true;
  return stream;
}

Status Call::send(comm::DeviceLink& link, const comm::LinkPart& part) {
  if (!is_link_forked_[link.index()])
    BRAID_RETURN_IF_ERROR(device_.order().after(link.stream(), stream_));
  is_link_forked_[link.index()] = true;
  return link.enqueue(part, link.stream());
}

Status Call::end() {
  comm::CallOrder& order = device_.order();
  for (const auto& link : device_.links().beside())
    if (is_link_forked_[link->index()]) BRAID_RETURN_IF_ERROR(link->note_done());
  for (size_t i = 0; i < is_forked_.size(); ++i)
    if (is_forked_[i])
      BRAID_RETURN_IF_ERROR(
          order.after(stream_, order.side(static_cast<comm::CallOrder::Side>(i))));
  for (const auto& link : device_.links().beside())
    if (is_link_forked_[link->index()]) BRAID_RETURN_IF_ERROR(order.after(stream_, link->stream()));
  is_open_ = false;
  device_.call_watch().end(stream_, true);
  return device_.end(stream_);
}

uint64_t most_beside_bytes(const comm::Device& device, plan::Op op, uint64_t block_bytes) {
  const uint64_t scratch_bytes = device.arena().scratch_bytes();
  switch (op) {
    case plan::Op::kAllReduce: return scratch_bytes / 8;  // of a segment
    case plan::Op::kReduceScatter: return scratch_bytes / 4 / static_cast<uint64_t>(device.size());
    default: return block_bytes;
  }
}

// One link carries parts of sums: operands of another would need a place of their own.
Cut cut_of(const comm::Device& device, plan::Op op, uint64_t block_bytes, double used) {
  Cut cut;
  if (!can_be_cut(block_bytes)) return cut;
  const bool is_sum = op == plan::Op::kAllReduce || op == plan::Op::kReduceScatter;
  const uint64_t most = most_beside_bytes(device, op, block_bytes);
  uint64_t taken = 0;
  for (const auto& link : device.links().beside()) {
    if (!link->can_carry(op) || (is_sum && link.get() != device.links().for_sums())) continue;
    cut.beside[link->index()] = link->part({op, block_bytes, most - taken, used, taken});
    taken += cut.beside[link->index()];
  }
  return cut;
}

Result<Cut> counted_cut(comm::Device& device, plan::Op op, uint64_t block_bytes,
                        const Counted& how) {
  if (can_be_cut(block_bytes)) {
    const uint64_t most = most_beside_bytes(device, op, block_bytes);
    BRAID_RETURN_IF_ERROR(device.links().count_call(
        {op, block_bytes, most, device.order().is_captured(), how.used, how.num_segments}));
  }
  return cut_of(device, op, block_bytes, how.used);
}

uint64_t uneven_part(const comm::Device& device, uint64_t block_bytes, double used) {
  const comm::DeviceLink* const link = device.links().for_uneven();
  if (link == nullptr || !can_be_cut(block_bytes)) return 0;
  return link->part({plan::Op::kAllToAll, block_bytes, block_bytes, used, 0});
}

comm::LinkPart all_to_everyone(const comm::Device& device, sys::DevicePtr source,
                               const std::array<sys::DevicePtr, nvlink::kMostRanks>& destinations,
                               uint64_t bytes) {
  comm::LinkPart part;
  if (bytes == 0) return part;
  const int everyone = comm::everyone_of(device.size());
  if (source != 0)
    part.add({device.rank(), everyone, sys::pointer_to<std::byte>(source), nullptr, bytes});
  for (int step = 1; step < device.size(); ++step) {
    const int peer = (device.rank() + step) % device.size();
    const sys::DevicePtr to = destinations[static_cast<size_t>(peer)];
    if (to != 0) part.add({peer, everyone, nullptr, sys::pointer_to<std::byte>(to), bytes});
  }
  part.agreed_flows = part.num_flows;
  return part;
}

comm::LinkPart each_to_each(const comm::Device& device,
                            const std::array<sys::DevicePtr, nvlink::kMostRanks>& sources,
                            const std::array<sys::DevicePtr, nvlink::kMostRanks>& destinations,
                            uint64_t bytes) {
  comm::LinkPart part;
  if (bytes == 0) return part;
  for (int step = 1; step < device.size(); ++step) {
    const int peer = (device.rank() + step) % device.size();
    const auto index = static_cast<size_t>(peer);
    part.add({device.rank(), peer, sys::pointer_to<std::byte>(sources[index]), nullptr, bytes});
    part.add(
        {peer, device.rank(), nullptr, sys::pointer_to<std::byte>(destinations[index]), bytes});
  }
  part.agreed_flows = part.num_flows;
  return part;
}

}  // namespace braid::coll::device
