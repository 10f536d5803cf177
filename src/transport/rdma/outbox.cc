#include "transport/rdma/outbox.h"

#include <algorithm>

namespace braid::transport::rdma {

void Outbox::push(const PieceTag& tag, std::span<const std::byte> payload) {
  std::byte* to = slot(posted_);
  SlotHeader header;
  header.sequence = posted_;
  header.tag = tag;
  header.bytes = static_cast<uint32_t>(payload.size());
  header.sender = static_cast<uint32_t>(self_);
  if (kChecksPayload) header.payload_sum = checksum(payload.data(), payload.size());
  if (!payload.empty()) std::memcpy(to + kPayloadOffset, payload.data(), payload.size());
  std::memcpy(to + kHeaderOffset, &header, sizeof header);
  ++posted_;
}

sys::FabricTransfer Outbox::next_write() {
  std::byte* from = slot(written_);
  SlotHeader header;
  std::memcpy(&header, from + kHeaderOffset, sizeof header);
  header.life = life_;
  seal(header);
  std::memcpy(from + kHeaderOffset, &header, sizeof header);
  sys::FabricTransfer write;
  write.local = from + kHeaderOffset;
  write.bytes = sizeof header + header.bytes;
  write.remote_address = ring_.address + written_ % shape_.depth * shape_.stride() + kHeaderOffset;
  write.remote_key = ring_.key;
  write.immediate = pack({Kind::kPiece, self_, life_, written_});
  return write;
}

// Only what was written can have been released, and an ack that comes late or twice must never take
// one back.
bool Outbox::on_ack(uint64_t sequence) {
  if (sequence <= acked_ || sequence > written_) return false;
  acked_ = sequence;
  return true;
}

bool Outbox::restart(uint32_t life, const RemoteRing& ring, uint64_t arrived) {
  if (arrived < acked_ || arrived > posted_) return false;
  life_ = life;
  ring_ = ring;
  written_ = arrived;
  return true;
}

void Outbox::for_each_unacked(const std::function<void(const Arrival&)>& visit) const {
  for (uint64_t s = acked_; s < posted_; ++s) {
    SlotHeader header;
    std::memcpy(&header, slot(s) + kHeaderOffset, sizeof header);
    visit({header.tag, std::span<const std::byte>(slot(s) + kPayloadOffset, header.bytes)});
  }
}

}  // namespace braid::transport::rdma
