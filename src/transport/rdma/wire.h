// What crosses the network: the 32 bits of an immediate, the header of a slot, and the two control
// lines.
//
// Nothing here is trusted when it comes in. A header or line is copied out of registered memory
// once, checked as the copy (a peer may write again at any time), and only the copy is used
// afterwards.
//
//   immediate   kind 2 | sender 6 | life 4 | sequence 20     32 bits are what EFA and verbs carry
//   slot        SlotHeader, then the payload
//   control     per peer: an Ask line and an Answer line
//
// `life` counts how often the ring of one (sender, receiver) pair was laid anew after a failure.
// The sequence goes on through all lives; 20 bits of it are enough because a window is never wider
// than 2^18.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/hash.h"
#include "transport/lane.h"

namespace braid::transport::rdma {

enum class Kind : uint32_t { kPiece = 0, kAck = 1, kAsk = 2, kAnswer = 3 };

inline constexpr int kRankBits = 6, kLifeBits = 4, kSequenceBits = 20;
static_assert(2 + kRankBits + kLifeBits + kSequenceBits == 32 && kMaxRanks == 1 << kRankBits);
/// A lane that failed more often than this stays down: the life in an immediate must never come
/// round again.
inline constexpr uint32_t kMaxLife = (1 << kLifeBits) - 1;
inline constexpr uint32_t kMaxDepth = 1 << (kSequenceBits - 2);

struct Immediate {
  Kind kind = Kind::kPiece;
  int rank = 0;
  uint32_t life = 0;
  uint64_t sequence = 0;  // unpacked: the low 20 bits only
};

constexpr uint32_t pack(const Immediate& i) {
  return static_cast<uint32_t>(i.kind) << 30 | static_cast<uint32_t>(i.rank) << 24 |
         (i.life & kMaxLife) << 20 |
         static_cast<uint32_t>(i.sequence & ((1u << kSequenceBits) - 1));
}
constexpr Immediate unpack(uint32_t bits) {
  return {static_cast<Kind>(bits >> 30), static_cast<int>(bits >> 24 & 63), bits >> 20 & kMaxLife,
          bits & ((1u << kSequenceBits) - 1)};
}

/// The full number whose low `kBits` bits are `low` and that is nearest to `near`. Before the first
/// one it wraps to a huge number, which every window check refuses.
template <int kBits>
constexpr uint64_t nearest_number(uint64_t near, uint64_t low) {
  constexpr uint64_t kSpan = uint64_t{1} << kBits;
  const uint64_t forward = (low - near) & (kSpan - 1);
  return forward < kSpan / 2 ? near + forward : near + forward - kSpan;
}
constexpr uint64_t nearest(uint64_t near, uint64_t low) {
  return nearest_number<kSequenceBits>(near, low);
}

/// As FNV-1a (base/hash.h), over 8-byte words and then the tail: quick enough for headers, and for
/// payloads in debug builds.
inline uint64_t checksum(const void* data, size_t bytes) {
  const auto* p = static_cast<const std::byte*>(data);
  uint64_t hash = kFnvStart ^ bytes, word = 0;
  for (; bytes > 0; p += std::min<size_t>(bytes, 8), bytes -= std::min<size_t>(bytes, 8)) {
    word = 0;
    std::memcpy(&word, p, std::min<size_t>(bytes, 8));
    hash = (hash ^ word) * kFnvPrime;
    hash ^= hash >> 32;
  }
  return hash;
}

inline constexpr uint32_t kSlotMagic = 0x62724431;  // "brD1"
inline constexpr uint32_t kLineMagic = 0x62724c31;  // "brL1"
#ifdef NDEBUG
inline constexpr bool kChecksPayload = false;
#else
inline constexpr bool kChecksPayload = true;
#endif

struct SlotHeader {
  uint32_t magic = kSlotMagic;
  uint32_t life = 0;
  uint64_t sequence = 0;
  PieceTag tag;
  uint32_t bytes = 0;
  uint32_t sender = 0;
  uint64_t payload_sum = 0;  // 0 = not summed (release builds)
  uint64_t header_sum = 0;   // over all fields before
};
static_assert(sizeof(SlotHeader) == 72 && offsetof(SlotHeader, header_sum) == 64);

/// Bytes between slots: header and payload, rounded up to a cache line so that payloads do not
/// share one.
inline constexpr size_t kPayloadOffset = 128;
constexpr size_t slot_stride(uint32_t slot_bytes) {
  return (kPayloadOffset + slot_bytes + 63) / 64 * 64;
}
/// The header lies directly before the payload, so that both are one write: [kHeaderOffset,
/// kPayloadOffset + bytes).
inline constexpr size_t kHeaderOffset = kPayloadOffset - sizeof(SlotHeader);

inline void seal(SlotHeader& h) { h.header_sum = checksum(&h, offsetof(SlotHeader, header_sum)); }
inline bool is_sealed(const SlotHeader& h) {
  return h.magic == kSlotMagic && h.header_sum == checksum(&h, offsetof(SlotHeader, header_sum));
}

/// Sender to receiver: "where are we?" (life is the current one) or "lay a new ring" (life is the
/// next one). Receiver to sender: "so far I have these; this is the ring". Both are safe to repeat
/// and to lose.
struct ControlLine {
  uint32_t magic = kLineMagic;
  uint32_t life = 0;
  uint64_t arrived = 0;   // answer: all sequences below have arrived
  uint64_t released = 0;  // answer: all sequences below are released
  uint64_t ring_address = 0;
  uint64_t ring_key = 0;
  uint64_t sum = 0;
};
static_assert(sizeof(ControlLine) == 48);
inline void seal(ControlLine& line) { line.sum = checksum(&line, offsetof(ControlLine, sum)); }
inline bool is_sealed(const ControlLine& line) {
  return line.magic == kLineMagic && line.sum == checksum(&line, offsetof(ControlLine, sum));
}

/// What a rank's control memory holds for each peer. Acks land here too, but only their immediate
/// is read.
struct ControlBlock {
  ControlLine ask;
  ControlLine answer;
  uint64_t ack = 0;
  uint64_t unused[3] = {};
};
static_assert(sizeof(ControlBlock) == 128);

}  // namespace braid::transport::rdma
