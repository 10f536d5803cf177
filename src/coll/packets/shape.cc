#include <algorithm>

#include "coll/packets/packets.h"

namespace braid::coll {

namespace {

uint64_t num_packets(uint64_t bytes) {
  return bytes == 0 ? 1 : (bytes + kPacketDataBytes - 1) / kPacketDataBytes;
}

/// One shot sends 2 (n-1) B, two shots 4 (n-1)/n B and a trip: they cross where the difference is
/// kTripBytes. Two ranks send as much either way.
uint64_t most_one_shot_bytes(uint64_t ranks) {
  if (ranks <= 2) return ~uint64_t{0};
  return kTripBytes * ranks / (2 * (ranks - 1) * (ranks - 2));
}

PacketPath path_of(plan::Op op, uint64_t bytes, uint64_t ranks) {
  if (op == plan::Op::kReduceScatter) return PacketPath::kReduceScatter;
  if (op != plan::Op::kAllReduce) return PacketPath::kCopy;
  return bytes <= most_one_shot_bytes(ranks) ? PacketPath::kOneShot : PacketPath::kTwoShot;
}

/// Packets from one rank to another, in one phase.
uint64_t slot_packets(PacketPath path, uint64_t bytes, uint64_t ranks) {
  const uint64_t whole = num_packets(bytes);
  return path == PacketPath::kTwoShot ? (whole + ranks - 1) / ranks : whole;
}

uint64_t half_bytes(plan::Op op, PacketPath path, uint64_t bytes, uint64_t ranks) {
  const uint64_t slot = slot_packets(path, bytes, ranks);
  uint64_t packets = ranks * slot;
  if (op == plan::Op::kBroadcast) packets = slot + ranks;  // greetings
  if (path == PacketPath::kTwoShot) packets *= 2;
  return packets * sizeof(Packet);
}

}  // namespace

PacketShape packets_shape(plan::Op op, uint64_t bytes, int num_ranks) noexcept {
  const auto ranks = static_cast<uint64_t>(num_ranks);
  const PacketPath path = path_of(op, bytes, ranks);
  const uint64_t packets = slot_packets(path, bytes, ranks);
  const uint64_t blocks = (packets + kPacketThreads - 1) / kPacketThreads;
  return {path, static_cast<uint32_t>(std::min<uint64_t>(blocks, kMostPacketBlocks)),
          kPacketThreads};
}

uint64_t packet_call_bytes(plan::Op op, uint64_t bytes, int num_ranks) noexcept {
  const auto ranks = static_cast<uint64_t>(num_ranks);
  return 2 * half_bytes(op, path_of(op, bytes, ranks), bytes, ranks);
}

uint64_t packet_area_bytes(uint64_t max_bytes, int num_ranks) noexcept {
  const auto ranks = static_cast<uint64_t>(num_ranks);
  const uint64_t one_shot = std::min(max_bytes, most_one_shot_bytes(ranks));
  return std::max({
      packet_call_bytes(plan::Op::kAllReduce, one_shot, num_ranks),
      packet_call_bytes(plan::Op::kAllReduce, max_bytes, num_ranks),
      packet_call_bytes(plan::Op::kBroadcast, max_bytes, num_ranks),
      packet_call_bytes(plan::Op::kAllGather, (max_bytes + ranks - 1) / ranks, num_ranks),
  });
}

}  // namespace braid::coll
