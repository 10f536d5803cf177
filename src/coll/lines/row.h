// Where each lane of a warp has its part of a row (lines.cuh), for the GPU's compiler and the
// host's: tests/coll/lines/row_test.cc.
#pragma once

#include <cstdint>

#include "coll/lines/lines.h"
#include "coll/reduce/elements.cuh"  // BRAID_HD

namespace braid::coll::device {

/// The last lane of a line holds its flag behind 8 bytes of data.
BRAID_HD bool has_flag(uint32_t lane) { return lane % 8 == 7; }

/// Where the lane's data begins in the 480 bytes of a row, and how much it is. The 28 lanes without
/// a flag hold the first 448 bytes, a vector each; the other four share the last 32.
BRAID_HD uint32_t lane_data_at(uint32_t lane) {
  const uint32_t before = lane / 8;  // lanes with flags
  return has_flag(lane) ? 448 + 8 * before : 16 * (lane - before);
}
BRAID_HD uint32_t lane_data_bytes(uint32_t lane) { return has_flag(lane) ? 8 : 16; }

/// Rows of a message; one at least, so that every peer hears of every call.
BRAID_HD uint64_t num_rows(uint64_t bytes) {
  return bytes == 0 ? 1 : (bytes + kRowDataBytes - 1) / kRowDataBytes;
}

}  // namespace braid::coll::device
