// Inbox: the receiving side towards one source: the ring it writes into, and what of it has
// arrived.
//
//   released_          arrived_ (all below are here)          released_ + depth
//      | shown to the caller | gaps: some here, some not yet  |  no sender may be here
//
// Immediates say that a slot was written, in any order, perhaps twice, and perhaps by a stranger; each
// is checked against the window and the slot's header. The checked header is copied into here_, so
// that later writes of a bad peer change nothing but payload.
//
// renew() lays a fresh ring for the next life. The old ring's key is taken back, and its memory
// stays mapped until the lane closes: writes of the old life that are still in some queue can land
// only there, and pieces in it that were shown to the caller stay readable.
//
// Threads: the lane's.
#pragma once

#include <cstdint>
#include <vector>

#include "sys/fabric/api.h"
#include "sys/host/pages.h"
#include "transport/rdma/wire.h"

namespace braid::transport::rdma {

struct RingShape {
  uint32_t depth = 0;
  uint32_t slot_bytes = 0;
  size_t stride() const { return slot_stride(slot_bytes); }
  size_t bytes() const { return depth * stride(); }
};

class Inbox {
 public:
  enum class Verdict : uint8_t { kNew, kStale, kUnfounded };

  /// The source seals what it writes with `nonce`.
  Inbox(int source, RingShape shape, uint64_t nonce)
      : source_(source), shape_(shape), nonce_(nonce), here_(shape.depth) {}
  /// Lays the ring of the first life.
  Status open(sys::FabricDomain& domain) { return lay(domain); }
  /// Lays the ring of the next life; pieces that arrived out of order and were not shown yet are
  /// forgotten, because the sender sends everything again from arrived().
  Status renew(sys::FabricDomain& domain);

  /// A piece's immediate came in. kStale: of an old life or seen before, nothing happened.
  /// kUnfounded: the slot does not hold what the immediate says. That is no piece of the source: a
  /// stranger's, or of a source gone wrong; nothing happened either.
  Verdict on_piece(const Immediate& immediate);

  uint32_t available() const { return static_cast<uint32_t>(arrived_ - released_); }
  Arrival at(uint32_t i) const;
  void release(uint32_t count);

  uint64_t arrived() const { return arrived_; }
  uint64_t released() const { return released_; }
  uint32_t life() const { return life_; }
  uint64_t ring_address() const { return region_->remote_address(); }
  uint64_t ring_key() const { return region_->key(); }
  uint64_t nonce() const { return nonce_; }

 private:
  struct Seen {
    bool is_here = false;
    PieceTag tag;
    std::span<const std::byte> payload;
  };
  Status lay(sys::FabricDomain& domain);
  Seen& seen(uint64_t sequence) { return here_[sequence % shape_.depth]; }

  int source_;
  RingShape shape_;
  uint64_t nonce_;
  uint32_t life_ = 0;
  uint64_t arrived_ = 0;
  uint64_t released_ = 0;
  std::vector<Seen> here_;
  std::vector<sys::Pages> rings_;  // newest last
  const sys::FabricRegion* region_ = nullptr;
};

}  // namespace braid::transport::rdma
