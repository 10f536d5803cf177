#include "transport/rdma/inbox.h"

#include <atomic>

#include "base/check.h"

namespace braid::transport::rdma {

Status Inbox::lay(sys::FabricDomain& domain) {
  BRAID_ASSIGN_OR_RETURN(sys::Pages ring, sys::Pages::map("pages for a ring", shape_.bytes()));
  const sys::FabricMemory memory{ring.data(), ring.bytes(), sys::Access::kRemoteTarget};
  BRAID_ASSIGN_OR_RETURN(region_, domain.register_memory(memory, sys::random_key()));
  rings_.push_back(std::move(ring));
  return {};
}

Status Inbox::renew(sys::FabricDomain& domain) {
  const sys::FabricRegion* old = region_;
  BRAID_RETURN_IF_ERROR(lay(domain));
  domain.unregister(old);
  ++life_;
  for (uint64_t s = arrived_; s < released_ + shape_.depth; ++s) seen(s).is_here = false;
  return {};
}

Inbox::Verdict Inbox::on_piece(const Immediate& immediate) {
  if (immediate.life != life_) return Verdict::kStale;
  const uint64_t sequence = nearest(arrived_, immediate.sequence);
  if (sequence < arrived_ || sequence >= released_ + shape_.depth || seen(sequence).is_here)
    return Verdict::kStale;
  const std::byte* slot = rings_.back().data() + sequence % shape_.depth * shape_.stride();
  SlotHeader header;
  std::memcpy(&header, slot + header_offset(shape_.slot_bytes), sizeof header);
  const bool is_right = is_sealed(header, nonce_) && header.life == life_ &&
                        header.sequence == sequence && header.bytes <= shape_.slot_bytes;
  if (!is_right) return Verdict::kUnfounded;
  // It was written after the payload: what is read from here on is not what was there before it.
  std::atomic_thread_fence(std::memory_order_acquire);
  const std::span payload(slot + payload_offset(shape_.slot_bytes, header.bytes), header.bytes);
  if (header.payload_sum != 0 && header.payload_sum != checksum(payload.data(), payload.size()))
    return Verdict::kUnfounded;
  seen(sequence) = {true, header.tag, payload};
  while (arrived_ < released_ + shape_.depth && seen(arrived_).is_here) ++arrived_;
  return Verdict::kNew;
}

Arrival Inbox::at(uint32_t i) const {
  BRAID_CHECK(i < available(), "piece {} of {} from rank {}", i, available(), source_);
  const Seen& piece = here_[(released_ + i) % shape_.depth];
  return {piece.tag, piece.payload};
}

void Inbox::release(uint32_t count) {
  BRAID_CHECK(count <= available(), "release of {} of {} pieces from rank {}", count, available(),
              source_);
  for (uint32_t i = 0; i < count; ++i) seen(released_++).is_here = false;
}

}  // namespace braid::transport::rdma
