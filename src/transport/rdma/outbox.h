// Outbox: the sending side towards one peer: the pieces that it has not confirmed, and where its
// ring is.
//
//   acked_            written_              posted_            acked_ + depth
//      | on their way     | waiting for a post  | free slots       |
//
// A piece stays in its transmit slot until the PEER acknowledged it; the library's completions free
// nothing. So the slots can be read by for_each_unacked(), and written again into a new ring, at
// any time.
//
// Threads: the lane's.
#pragma once

#include <cstdint>
#include <functional>

#include "transport/rdma/inbox.h"

namespace braid::transport::rdma {

struct RemoteRing {
  uint64_t address = 0;
  uint64_t key = 0;
};

class Outbox {
 public:
  /// `slots` is shape.bytes() of memory registered as a source.
  Outbox(int self, RingShape shape, std::byte* slots) : self_(self), shape_(shape), slots_(slots) {}

  /// Pieces go into `ring`, sealed with the nonce that its owner gave us.
  void point_at(const RemoteRing& ring, uint64_t nonce) { ring_ = ring, nonce_ = nonce; }
  bool has_room() const { return posted_ - acked_ < shape_.depth; }
  bool has_unwritten() const { return written_ < posted_; }
  bool has_unacked() const { return acked_ < posted_; }
  void push(const PieceTag& tag, std::span<const std::byte> payload);

  /// The next piece to write; seals its header for the current life.
  sys::FabricTransfer next_write();
  void wrote() { ++written_; }
  /// `sequence` (full) is what the peer says it released. False when that is impossible or old
  /// news.
  bool on_ack(uint64_t sequence);
  /// The peer laid a new ring and has everything below `arrived`: the rest is written again.
  /// False when the numbers are impossible.
  bool restart(uint32_t life, const RemoteRing& ring, uint64_t arrived);
  void for_each_unacked(const std::function<void(const Arrival&)>& visit) const;

  uint64_t posted() const { return posted_; }
  uint64_t written() const { return written_; }
  uint64_t acked() const { return acked_; }
  uint32_t life() const { return life_; }

 private:
  std::byte* slot(uint64_t sequence) const {
    return slots_ + sequence % shape_.depth * shape_.stride();
  }
  std::byte* header_at(uint64_t sequence) const {
    return slot(sequence) + header_offset(shape_.slot_bytes);
  }

  int self_;
  RingShape shape_;
  std::byte* slots_;
  RemoteRing ring_;
  uint64_t nonce_ = 0;
  uint32_t life_ = 0;
  uint64_t posted_ = 0;
  uint64_t written_ = 0;
  uint64_t acked_ = 0;
};

}  // namespace braid::transport::rdma
