// Host ring: bytes between GPUs through small slots in pinned host memory that all of them map. It
// is the PCIe link's path: a sender writes a slot once over its own PCIe, and every reader reads it
// over its own, so an all-gather costs each GPU its block once outward, however many ranks read it.
//
// Slots are small and used again and again, so that they stay in the last-level cache: over large
// host buffers eight GPUs get 8-12 GB/s each, over a window of a few MiB 33-48.
//
// Ring     one per (sender, key, lane): num_slots slots, a counter `full` that the sender writes,
//          and a counter `free` per reader that this reader writes. Key r is for rank r alone, key
//          `size` is for everyone. A lane is a part of a transfer that one block moves.
// Sender   for its slot number s (counted from the comm's first): waits until every reader's `free`
//          says s - num_slots + 1, writes the slot, then full = s + 1 with release order.
// Reader   waits for full > s with acquire order, loads the slot, then free = s + 1. By bulk copies
//          without an order of its own: what has been loaded cannot change any more.
//
// A lane's block copies by its threads or by bulk copies (bulk_lane.cuh), whatever the other side
// does.
//
// Numbers go on from call to call in device memory and are never reset, so a graph can be replayed.
// Both sides of a ring count alike because both derive the number of slots from the same byte
// count. Nothing tears: a slot is written only after all its readers have let go of it, and read
// only after it was written. Nothing hangs: nvlink/team.cuh.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/nvlink/team.h"

namespace braid::pcie {

inline constexpr int kMostLanes = 8;
inline constexpr int kMostKeys = nvlink::kMostRanks + 1;
inline constexpr int kMostFlows = 2 * nvlink::kMostRanks;

/// Where lanes go by bulk copies (bulk_lane.cuh): tiles of shared memory, and a warp each that
/// loads, stores, tells and watches.
inline constexpr uint32_t kTileBytes = 4 << 10;
inline constexpr uint32_t kTiles = 32;
inline constexpr uint32_t kBulkThreads = 32 * 4;
inline constexpr uint32_t kBulkSharedBytes = kTiles * (kTileBytes + 16) + 128;

struct RingCounters {
  struct alignas(128) Padded {
    uint64_t value;
  };
  Padded full;
  Padded free[nvlink::kMostRanks];  // [reader]
};

/// What lies at the start of every rank's segment, the slots after it.
struct RingHead {
  RingCounters counters[kMostKeys][kMostLanes];
};

/// How far this rank has come on each ring, in its device memory.
struct RingProgress {
  uint64_t sent[kMostKeys][kMostLanes];
  uint64_t received[nvlink::kMostRanks][kMostKeys][kMostLanes];
};

struct HostRing {
  std::byte* segment[nvlink::kMostRanks];  // as this device addresses each rank's
  RingProgress* progress;
  uint32_t slot_bytes;
  uint32_t num_slots;
  int32_t num_lanes;  // that a key has slots for
};

/// One transfer over a ring, as this rank sees it: it either sends or receives.
struct Flow {
  int32_t sender;
  int32_t key;
  const std::byte* source;  // null: this rank receives
  std::byte* destination;
  uint64_t bytes;
};

struct Flows {
  int32_t num_flows;
  int32_t num_lanes;   // blocks of one flow
  int32_t open_tiles;  // of each lane that sends by bulk copies: stores that may be under way
  Flow flow[kMostFlows];
};

/// `num_lanes`: the most that a flow may have.
constexpr uint64_t segment_bytes(int num_ranks, uint32_t slot_bytes, uint32_t num_slots,
                                 int num_lanes) {
  const auto num_rings = static_cast<uint64_t>(num_ranks + 1) * static_cast<uint64_t>(num_lanes);
  return sizeof(RingHead) + num_rings * num_slots * slot_bytes;
}

/// A lane's part of a transfer: whole 16-byte units, the last lane takes what is left.
constexpr uint64_t lane_begin(uint64_t bytes, int lane, int num_lanes) {
  const uint64_t units = bytes / 16;
  if (lane == num_lanes) return bytes;
  return units * static_cast<uint64_t>(lane) / static_cast<uint64_t>(num_lanes) * 16;
}
static_assert(lane_begin(100, 0, 4) == 0 && lane_begin(100, 1, 4) == 16 &&
              lane_begin(100, 4, 4) == 100 && lane_begin(15, 3, 4) == 0);

}  // namespace braid::pcie
