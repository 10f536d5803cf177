// What crosses the network: the 32 bits of an immediate, the header of a slot, and the control
// records.
//
//   immediate   kind 2 | sender 6 | life 4 | sequence 20     32 bits are what EFA and verbs carry
//   slot        the payload, then the SlotHeader at a fixed place behind it
//   control     per peer: an Ask line, an Answer line and the last few acks
//
// Who connects to a listening endpoint can send it any immediate, without a key. So an immediate is
// a hint where to look and nothing more: what is believed lies in memory that only the peer has the
// key of, sealed with a nonce that only the peer was told (RemoteEndpoint, lane.h). Even so nothing is trusted:
// a record is copied out of registered memory once, checked as the copy (the peer may write again at
// any time), and only the copy is used afterwards.
//
// The header lies behind the payload because somebody else's hint may come while the peer's write is
// landing: bytes of one write land in their order on every provider but efa (whose endpoints take
// nothing from strangers, real_info.cc), so where the header is whole, the payload is.
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
/// payloads in debug builds. Who does not know the nonce cannot tell the sum of anything.
inline uint64_t checksum(const void* data, size_t bytes, uint64_t nonce = 0) {
  const auto* p = static_cast<const std::byte*>(data);
  uint64_t hash = kFnvStart ^ bytes ^ nonce, word = 0;
  for (; bytes > 0; p += std::min<size_t>(bytes, 8), bytes -= std::min<size_t>(bytes, 8)) {
    word = 0;
    std::memcpy(&word, p, std::min<size_t>(bytes, 8));
    hash = (hash ^ word) * kFnvPrime;
    hash ^= hash >> 32;
  }
  return hash;
}

#ifdef NDEBUG
inline constexpr bool kChecksPayload = false;
#else
inline constexpr bool kChecksPayload = true;
#endif

struct SlotHeader {
  uint32_t life = 0;
  uint32_t bytes = 0;  // of the payload
  uint64_t sequence = 0;
  PieceTag tag;
  uint64_t payload_sum = 0;  // 0 = not summed (release builds)
  uint64_t sum = 0;
};
static_assert(sizeof(SlotHeader) == 64);

constexpr size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }
/// From a slot's first byte. The payload ends in the line before it and begins on a line of its own,
/// so that both are one write: [payload_offset(), slot_stride()).
constexpr size_t header_offset(uint32_t slot_bytes) { return whole_lines(slot_bytes); }
constexpr size_t payload_offset(uint32_t slot_bytes, size_t payload_bytes) {
  return header_offset(slot_bytes) - whole_lines(payload_bytes);
}
/// Bytes between slots, which share no cache line.
constexpr size_t slot_stride(uint32_t slot_bytes) {
  return header_offset(slot_bytes) + sizeof(SlotHeader);
}

/// Sender to receiver: "where are we?" (life is the current one) or "lay a new ring" (life is the
/// next one). Receiver to sender: "so far I have these; this is the ring". Both are safe to repeat
/// and to lose. A line whose number was seen is not looked at again: an old one still lies there,
/// and anybody may say that it is new.
struct ControlLine {
  uint32_t is_answer = 0;
  uint32_t life = 0;
  uint64_t number = 0;    // ask: counted from 1; answer: of the ask
  uint64_t arrived = 0;   // answer: all sequences below have arrived
  uint64_t released = 0;  // answer: all sequences below are released
  uint64_t ring_address = 0;
  uint64_t ring_key = 0;
  uint64_t sum = 0;
};
static_assert(sizeof(ControlLine) == 56);

/// Receiver to sender: all sequences below were released.
struct AckRecord {
  uint64_t released = 0;
  uint64_t sum = 0;
};

/// Seals with the nonce that the reader gave to the writer; of all that has its sum in the end.
template <typename T>
void seal(T& record, uint64_t nonce) {
  record.sum = checksum(&record, offsetof(T, sum), nonce);
}
template <typename T>
bool is_sealed(const T& record, uint64_t nonce) {
  return record.sum == checksum(&record, offsetof(T, sum), nonce);
}

/// Acks in turn, so that one that is overtaken does not hide the next ones.
inline constexpr uint64_t kAckRecords = 4;

/// What a rank's control memory holds for each peer.
struct ControlBlock {
  ControlLine ask;
  ControlLine answer;
  AckRecord acks[kAckRecords];
  uint64_t unused[2] = {};
};
static_assert(sizeof(ControlBlock) == 192);

}  // namespace braid::transport::rdma
