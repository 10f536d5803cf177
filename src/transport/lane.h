// Lane: how bytes move. One Lane object is this rank's end of one link, towards every peer at once.
//
// What a lane carries are pieces: up to caps().max_piece_bytes of payload under a tag of 32 bytes
// that the lane never reads. Towards one peer a lane is an ordered channel with a bounded number of
// unacknowledged pieces (caps().depth_pieces); two lanes have no order between them, and nothing
// above may rely on one.
//
//   sender                                  receiver
//   try_put(peers, tag, payload)  ------->  available(src) grows by one
//   (payload is copied: the caller's        at(src, 0) is the oldest unreleased piece; its view
//   buffer is free when put returns)        stays valid until release()
//   acked(peer) grows            <-------   release(src, n): the slot goes back to the sender
//
// A piece is acknowledged when the receiver has RELEASED it, never when a library says it was sent:
// on several libfabric providers a write that never landed completes with success. Pieces that are
// posted and not yet acked stay readable through for_each_unacked(), so that the caller can put
// them on another lane when this one dies or stalls. A receiver may therefore see a piece twice,
// and late: it must recognise duplicates by the tag.
//
// A lane never blocks, never sleeps and never calls back. It moves forward in progress(), and only
// there. Threads: one thread at a time per Lane object (the comm's lock); the two ends are
// different processes or threads and share nothing but the link.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace braid::transport {

inline constexpr int kMaxRanks = 64;  // the width of PeerSet

/// A set of ranks.
class PeerSet {
 public:
  constexpr PeerSet() = default;
  static constexpr PeerSet only(int rank) { return PeerSet(uint64_t{1} << rank); }
  static constexpr PeerSet everyone() { return PeerSet(~uint64_t{0}); }
  static constexpr PeerSet all_but(int rank, int size) {
    const uint64_t all = size >= 64 ? ~uint64_t{0} : (uint64_t{1} << size) - 1;
    return PeerSet(all & ~(uint64_t{1} << rank));
  }
  constexpr bool contains(int rank) const { return (bits_ >> rank) & 1; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr int count() const { return __builtin_popcountll(bits_); }
  constexpr int first() const { return __builtin_ctzll(bits_); }  // undefined when empty
  constexpr PeerSet without(int rank) const { return PeerSet(bits_ & ~(uint64_t{1} << rank)); }
  constexpr PeerSet with(int rank) const { return PeerSet(bits_ | (uint64_t{1} << rank)); }
  constexpr uint64_t bits() const { return bits_; }
  friend constexpr bool operator==(PeerSet, PeerSet) = default;

 private:
  explicit constexpr PeerSet(uint64_t bits) : bits_(bits) {}
  uint64_t bits_ = 0;
};

/// 32 bytes that travel with every piece; their meaning belongs to the layer above.
struct PieceTag {
  std::array<uint64_t, 4> words{};
  friend bool operator==(const PieceTag&, const PieceTag&) = default;
};

/// One arrived piece. `payload` points into the lane's own memory until release().
struct Arrival {
  PieceTag tag;
  std::span<const std::byte> payload;
};

struct LaneCaps {
  uint32_t max_piece_bytes = 0;  // largest payload of one put
  uint32_t depth_pieces = 0;     // unacked pieces that one peer may have
  bool can_multicast = false;    // one put to k peers costs the sender one write, not k
  // A put may be lost with its link: do not forget a piece before it is acked.
  bool can_lose = false;
  // A peer that sleeps on its doorbell is woken by puts and acks of this lane.
  bool can_ring = false;
  bool is_paced = false;  // held to a rate for an experiment; every table must say so
};

enum class PutResult {
  kAccepted,
  kFull,  // a peer's slots are full or the pacing clock is ahead: progress() and try again
  kDown,  // the lane to one of the peers is dead; see health()
};

class Lane {
 public:
  virtual ~Lane() = default;

  virtual const LaneCaps& caps() const = 0;
  /// "shm", "staged", "rdma:tcp:10.0.1.1"...: the link's name, the same on all ranks.
  virtual const std::string& name() const = 0;

  /// Hands one piece to every rank in `peers` (never empty, never self), or to none of them.
  /// Copies `payload` before it returns kAccepted. payload.size() <= max_piece_bytes.
  virtual PutResult try_put(PeerSet peers, const PieceTag& tag,
                            std::span<const std::byte> payload) = 0;

  /// How many pieces from `src` have arrived and are not released; 0 from this rank. Pieces are in
  /// posting order.
  virtual uint32_t available(int src) const = 0;
  /// The i-th unreleased piece from `src`, i < available(src).
  virtual Arrival at(int src, uint32_t i) const = 0;
  /// Gives back the oldest `count` pieces from `src`, which acknowledges them.
  virtual void release(int src, uint32_t count) = 0;

  /// Pieces ever accepted for `peer`, and how many of those it has released.
  virtual uint64_t posted(int peer) const = 0;
  virtual uint64_t acked(int peer) const = 0;
  /// Calls `visit` for each piece to `peer` that is posted and not acked, oldest first. Works on a
  /// dead lane too.
  virtual void for_each_unacked(int peer,
                                const std::function<void(const Arrival&)>& visit) const = 0;

  /// Moves what can move now: reads acks and arrivals, completes posted writes. True when anything
  /// changed.
  virtual bool progress() = 0;
  /// When progress() may next have something to do although no peer acts: a pacing clock, a link's
  /// latency, a network to be polled. now_ns() or less = poll me; INT64_MAX = only a peer can
  /// change my state.
  virtual int64_t next_event_ns() const = 0;

  /// ok, or why nothing can reach `peer` on this link.
  virtual Status health(int peer) const = 0;
  /// Nothing reaches `peer` now, but the lane is making the way anew by itself: what was posted will
  /// arrive, and puts be taken again, if the peer is there.
  virtual bool is_mending(int /*peer*/) const { return false; }
};

}  // namespace braid::transport
