// The two ends of a Ring; the protocol is told in ring.h.
#include "transport/host/ring.h"

#include "base/check.h"

namespace braid::transport {

RingWriter::RingWriter(std::byte* base, RingLayout layout, Rooms rooms)
    : ack_(reinterpret_cast<RingAck*>(base + RingLayout::ack_offset())),
      headers_(reinterpret_cast<SlotHeader*>(base + RingLayout::headers_offset())),
      depth_(layout.depth),
      rooms_(rooms),
      sent_(layout.depth) {}

void RingWriter::publish(const PieceTag& tag, uint32_t bytes, uint32_t room) {
  const uint32_t slot = next_slot();
  SlotHeader& header = headers_[slot];
  header.tag = tag;
  header.bytes = bytes;
  header.room = room;
  ++posted_;
  header.stamp.store(posted_, std::memory_order_release);  // pairs with RingReader::poll()
  sent_[slot] = {tag, bytes, room};
}

Status RingWriter::check_ack(uint64_t released) const {
  if (released > acked_ && released <= posted_) return {};
  return internal_error("ring: reader says it released {} pieces, last time {}, posted {}",
                        released, acked_, posted_);
}

Arrival RingWriter::unacked(uint64_t i) const {
  const Sent& sent = sent_[(acked_ + i) % depth_];
  return {sent.tag, {rooms_.at(sent.room), sent.bytes}};
}

RingReader::RingReader(std::byte* base, RingLayout layout, Rooms rooms)
    : ack_(reinterpret_cast<RingAck*>(base + RingLayout::ack_offset())),
      headers_(reinterpret_cast<SlotHeader*>(base + RingLayout::headers_offset())),
      depth_(layout.depth),
      rooms_(rooms),
      arrivals_(layout.depth) {}

Status RingReader::poll() {
  for (;;) {
    const SlotHeader& header = headers_[seen_ % depth_];
    // Pairs with RingWriter::publish().
    const uint64_t stamp = header.stamp.load(std::memory_order_acquire);
    const uint64_t last_lap = seen_ < depth_ ? 0 : seen_ + 1 - depth_;
    if (stamp == last_lap) return {};
    BRAID_RETURN_IF_ERROR(accept(header, stamp));
  }
}

Status RingReader::accept(const SlotHeader& header, uint64_t stamp) {
  const uint32_t bytes = header.bytes;
  const uint32_t room = header.room;
  if (stamp != seen_ + 1)
    return internal_error("ring: slot {} carries stamp {}, expected {}", seen_ % depth_, stamp,
                          seen_ + 1);
  if (bytes > rooms_.layout.room_bytes)
    return internal_error("ring: piece {} says {} bytes, a room has {}", seen_, bytes,
                          rooms_.layout.room_bytes);
  if (room >= rooms_.layout.num_rooms)
    return internal_error("ring: piece {} names room {} of {}", seen_, room,
                          rooms_.layout.num_rooms);
  arrivals_[seen_ % depth_] = {header.tag, {rooms_.at(room), bytes}};
  ++seen_;
  return {};
}

void RingReader::release(uint32_t count) {
  BRAID_CHECK(count <= available(), "ring: release of {} pieces, {} are there", count, available());
  released_ += count;
  ack_->released.store(released_, std::memory_order_release);  // pairs with RingWriter::poll_acks()
}

}  // namespace braid::transport
