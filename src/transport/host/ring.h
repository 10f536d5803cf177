// Ring: one ordered stream of pieces from one writer to one reader, in memory that both have
// mapped.
//
// What lies in memory (64-byte lines, so that no line is written by both ends):
//
//   RingAck          released                                     written by the reader only
//   SlotHeader[depth]  stamp, bytes, room, tag                    written by the writer only
//
// Payload lies in `rooms` elsewhere: beside the ring for lane shm, in the writer's own pool for
// lane staged. A header names its room, so one payload can hang in many rings.
//
// Piece number s (0, 1, 2, ...) uses slot s % depth. Its life:
//
//   writer                                      reader
//   s - released < depth, else full
//   fill the room, then tag, bytes, room
//   stamp = s + 1            (release) ------>  stamp == s + 1 (acquire): check, copy the header
//                                               out, show the piece
//                                               read the payload in place for as long as it likes
//   read released (acquire)  <---------------   released = s + 1 (release)
//   the slot and, when no other reader holds
//   it, the room are free again
//
// Nothing tears: a header is only written while its stamp still says the piece of one lap earlier,
// which the reader has released, and the reader looks at the rest only after the stamp changed.
// Nothing hangs: neither end waits, both counters only grow, and a full ring is full only until the
// reader releases. Counters have 64 bits and do not wrap.
//
// Neither end trusts what the other wrote. A slot's stamp has two lawful values (this lap's and the
// last one's), a length at most room_bytes, a room below num_rooms, and `released` lies between its
// last value and what was posted. Anything else is a Status that names it, and the ring stays dead;
// no scribbled number is ever used as an index.
//
// Threads: each end by one thread at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/status.h"
#include "transport/lane.h"

namespace braid::transport {

inline constexpr size_t kLineBytes = 64;

struct alignas(kLineBytes) SlotHeader {
  std::atomic<uint64_t> stamp;  // number of the piece + 1; 0 before the first lap
  uint32_t bytes;
  uint32_t room;
  PieceTag tag;
  uint64_t reserved[2];
};
static_assert(sizeof(SlotHeader) ==
              sizeof(std::atomic<uint64_t>) + 2 * sizeof(uint32_t) + sizeof(PieceTag) + 16);
static_assert(sizeof(SlotHeader) == kLineBytes);

struct alignas(kLineBytes) RingAck {
  std::atomic<uint64_t> released;
};
static_assert(sizeof(RingAck) == kLineBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");

/// Where a ring of `depth` slots keeps things, from the ring's first byte.
struct RingLayout {
  uint32_t depth = 0;

  static constexpr size_t ack_offset() { return 0; }
  static constexpr size_t headers_offset() { return sizeof(RingAck); }
  constexpr size_t bytes() const { return headers_offset() + depth * sizeof(SlotHeader); }
};

/// Equal rooms for payload. A stride of room_bytes + one line keeps rooms of 2^n bytes from sharing
/// cache sets.
struct RoomLayout {
  uint32_t num_rooms = 0;
  uint32_t room_bytes = 0;

  constexpr size_t stride() const {
    return (room_bytes + kLineBytes - 1) / kLineBytes * kLineBytes + kLineBytes;
  }
  constexpr size_t bytes() const { return num_rooms * stride(); }
};

/// Rooms somewhere in memory.
struct Rooms {
  RoomLayout layout;
  std::byte* base = nullptr;
  std::byte* at(uint32_t room) const { return base + room * layout.stride(); }
};

/// The sending end. Keeps a private copy of every header, so that nothing is ever read back from
/// shared memory.
class RingWriter {
 public:
  RingWriter(std::byte* base, RingLayout layout, Rooms rooms);

  bool is_full() const { return posted_ - acked_ >= depth_; }
  uint64_t posted() const { return posted_; }
  uint64_t acked() const { return acked_; }
  uint32_t next_slot() const { return static_cast<uint32_t>(posted_ % depth_); }
  const Rooms& rooms() const { return rooms_; }

  /// Makes the next piece visible; its payload already lies in `room`. Not when is_full().
  void publish(const PieceTag& tag, uint32_t bytes, uint32_t room);
  /// Reads how far the reader is, and calls `freed(room)` for each room it gave back. Internal when
  /// the word lies.
  template <typename Freed>
  Status poll_acks(Freed&& freed);
  /// The i-th unacked piece, i < posted() - acked().
  Arrival unacked(uint64_t i) const;
  /// The room of piece `number`, which is not acked yet.
  uint32_t room_of(uint64_t number) const { return sent_[number % depth_].room; }

 private:
  struct Sent {
    PieceTag tag;
    uint32_t bytes = 0;
    uint32_t room = 0;
  };
  Status check_ack(uint64_t released) const;

  RingAck* ack_;
  SlotHeader* headers_;
  const uint32_t depth_;
  Rooms rooms_;
  uint64_t posted_ = 0;
  uint64_t acked_ = 0;
  std::vector<Sent> sent_;
};

/// The receiving end.
class RingReader {
 public:
  RingReader(std::byte* base, RingLayout layout, Rooms rooms);

  uint32_t available() const { return static_cast<uint32_t>(seen_ - released_); }
  Arrival at(uint32_t i) const { return arrivals_[(released_ + i) % depth_]; }
  uint64_t released() const { return released_; }

  /// Looks for new pieces, which available() then counts. Internal when a header lies.
  Status poll();
  /// Gives back the oldest `count` <= available() pieces.
  void release(uint32_t count);

 private:
  Status accept(const SlotHeader& header, uint64_t stamp);

  RingAck* ack_;
  const SlotHeader* headers_;
  const uint32_t depth_;
  Rooms rooms_;
  uint64_t seen_ = 0;
  uint64_t released_ = 0;
  std::vector<Arrival>
      arrivals_;  // checked copies: a header that changes later changes nothing here
};

template <typename Freed>
Status RingWriter::poll_acks(Freed&& freed) {
  // Pairs with RingReader::release().
  const uint64_t released = ack_->released.load(std::memory_order_acquire);
  if (released == acked_) return {};
  BRAID_RETURN_IF_ERROR(check_ack(released));
  for (; acked_ < released; ++acked_) freed(room_of(acked_));
  return {};
}

}  // namespace braid::transport
