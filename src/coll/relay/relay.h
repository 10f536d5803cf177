// A broadcast among three ranks or more, by one kernel on every rank: what it is told and how a
// message is cut. The protocol, and why it is right, is told in relay.cu.
//
// Entry: braid_relay(RelayArgs), relay_blocks() blocks of kRelayThreads, with kBulkSharedBytes of
// dynamic shared memory where uses_bulk is 1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/rounding.h"
#include "coll/direct/direct.h"
#include "transport/nvlink/team.h"

namespace braid::coll {

inline constexpr uint32_t kRelayThreads = 512;
inline constexpr uint32_t kMostRelayBlocks = 16;
inline constexpr uint32_t kLeastRelayUnitBytes = 2 * kBulkTileBytes;
inline constexpr uint32_t kMostRelayRows = 16 << 10;

/// A rank's flags, [source][row], all zero before the first call.
inline constexpr uint64_t kRelayFlagBytes = sizeof(uint64_t) * nvlink::kMostRanks * kMostRelayRows;

/// The message is rows of a unit for each of the others, the ranks but the root in the order behind
/// it. Rows and units are counted in 32 bits, since one thread divides them for every tile.
struct RelayShape {
  uint64_t bytes;
  uint32_t num_others;
  uint32_t unit_bytes;  // of whole tiles

  constexpr uint32_t num_rows() const {
    return static_cast<uint32_t>(divided_up(bytes, uint64_t{unit_bytes} * num_others));
  }
  /// Where the unit of the others' number `other` begins in a row, and its bytes: 0 at the end.
  constexpr uint64_t begin_of(uint32_t row, uint32_t other) const {
    return (uint64_t{row} * num_others + other) * unit_bytes;
  }
  constexpr uint32_t bytes_of(uint32_t row, uint32_t other) const {
    const uint64_t begin = begin_of(row, other);
    if (begin >= bytes) return 0;
    return bytes - begin < unit_bytes ? static_cast<uint32_t>(bytes - begin) : unit_bytes;
  }
};

/// All ranks launch the same calls in the same order, with equal shape and root, each behind a
/// barrier of all ranks. Blocks are each rank's own choice.
struct RelayArgs {
  nvlink::Team team;
  uint64_t* flags[nvlink::kMostRanks];   // of every rank, as this GPU addresses them
  DirectState* state;                    // of the relay alone, all zero before the first call
  const std::byte* source;               // the root's message, read on the root alone
  std::byte* place[nvlink::kMostRanks];  // where the message lands with every other rank
  RelayShape shape;
  int32_t root;
  uint32_t uses_bulk;  // 1: this rank's addresses are multiples of 16, and its GPU has the copies
};

/// Of a message of one byte or more, among three ranks or more.
RelayShape relay_shape(uint64_t bytes, int num_ranks) noexcept;
/// Of a launch.
uint32_t relay_blocks(const RelayShape& shape) noexcept;

}  // namespace braid::coll
