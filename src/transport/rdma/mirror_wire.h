// What the 32 bits of an immediate say between mirrors (mirror.h).
//
//   kind 1 | sender 4 | everyone 1 | lane 3 | number 23
//
// The number is the low part of a slot's number, or of how many slots were freed; a ring has 1,024
// slots at most, so 23 bits tell it apart from all that can be meant.
//
// As between lanes (wire.h) an immediate is a hint, for anybody can send one. What it says must
// stand on the sender's board as well, which lies behind the slots of its mirror, under their key and
// sealed with a nonce: a record for every slot that was written, and the last few frees of each ring.
//
//   board   full [everyone 2][lane][slot]    free [everyone 2][lane][4]
#pragma once

#include <cstdint>

#include "transport/pcie/host_ring.h"
#include "transport/rdma/wire.h"

namespace braid::transport::rdma {

enum class Told : uint32_t { kFull = 0, kFree = 1 };

inline constexpr int kNumberBits = 23;
static_assert(nvlink::kMostRanks == 1 << 4 && pcie::kMostLanes == 1 << 3);
static_assert(1 + 4 + 1 + 3 + kNumberBits == 32);

/// On a board. Of a slot: its number. Of a free: how many were freed.
struct NewsRecord {
  uint64_t number = 0;
  uint64_t sum = 0;
};

/// Frees in turn, so that one that is overtaken does not hide the next ones.
inline constexpr uint64_t kFreeRecords = 4;

/// Where records lie, in bytes from a board's first.
struct BoardShape {
  uint32_t num_slots = 0;
  uint32_t num_lanes = 0;

  uint64_t full_at(bool everyone, int lane, uint64_t number) const {
    return (ring(everyone, lane) * num_slots + number % num_slots) * sizeof(NewsRecord);
  }
  uint64_t free_at(bool everyone, int lane, uint64_t nth) const {
    return (uint64_t{2} * num_lanes * num_slots + ring(everyone, lane) * kFreeRecords +
            nth % kFreeRecords) *
           sizeof(NewsRecord);
  }
  uint64_t bytes() const {
    return whole_lines(uint64_t{2} * num_lanes * (num_slots + kFreeRecords) * sizeof(NewsRecord));
  }

 private:
  uint64_t ring(bool everyone, int lane) const {
    return (everyone ? num_lanes : 0) + static_cast<uint64_t>(lane);
  }
};

struct SlotNews {
  Told told = Told::kFull;
  int sender = 0;         // of this immediate
  bool everyone = false;  // of the ring that everyone reads, else of the one between the two
  int lane = 0;
  // KFull: a slot's, which is written. kFree: so many were freed. Unpacked: low.
  uint64_t number = 0;
};

constexpr uint32_t pack_news(const SlotNews& n) {
  return static_cast<uint32_t>(n.told) << 31 | static_cast<uint32_t>(n.sender) << 27 |
         (n.everyone ? 1U << 26 : 0U) | static_cast<uint32_t>(n.lane) << kNumberBits |
         static_cast<uint32_t>(n.number & ((1U << kNumberBits) - 1));
}
constexpr SlotNews unpack_news(uint32_t bits) {
  return {static_cast<Told>(bits >> 31), static_cast<int>(bits >> 27 & 15), (bits >> 26 & 1) != 0,
          static_cast<int>(bits >> kNumberBits & 7), bits & ((1U << kNumberBits) - 1)};
}

}  // namespace braid::transport::rdma
