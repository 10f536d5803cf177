#include "transport/rdma/outbox.h"

#include <algorithm>

namespace braid::transport::rdma {

void Outbox::push(const PieceTag& tag, std::span<const std::byte> payload) {
  SlotHeader header;
  header.sequence = posted_;
  header.tag = tag;
  header.bytes = static_cast<uint32_t>(payload.size());
  if (kChecksPayload) header.payload_sum = checksum(payload.data(), payload.size());
  std::byte* to = slot(posted_) + payload_offset(shape_.slot_bytes, payload.size());
  if (!payload.empty()) std::memcpy(to, payload.data(), payload.size());
  std::memcpy(header_at(posted_), &header, sizeof header);
  ++posted_;
}

sys::FabricTransfer Outbox::next_write() {
  SlotHeader header;
  std::memcpy(&header, header_at(written_), sizeof header);
  header.life = life_;
  seal(header, nonce_);
  std::memcpy(header_at(written_), &header, sizeof header);
  const size_t begin = payload_offset(shape_.slot_bytes, header.bytes);
  sys::FabricTransfer write;
  write.local = slot(written_) + begin;
  write.bytes = shape_.stride() - begin;
  write.remote_address = ring_.address + written_ % shape_.depth * shape_.stride() + begin;
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
    std::memcpy(&header, header_at(s), sizeof header);
    const std::byte* payload = slot(s) + payload_offset(shape_.slot_bytes, header.bytes);
    visit({header.tag, std::span<const std::byte>(payload, header.bytes)});
  }
}

}  // namespace braid::transport::rdma
