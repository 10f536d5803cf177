// Which of its kernels moves a ring's flows (pcie/host_ring.h), and by how many blocks.
//
//   threads   512 threads a block copy; any address, any GPU
//   bulk      a few threads a block order bulk asynchronous copies; whole vectors, sm_90 and later
//             (docs/decisions/0010-host-ring-by-bulk-copies.md). What they store is held to a
//             window (docs/decisions/0015-stores-that-wait-for-pcie.md)
//
// Each rank chooses for itself, and for every launch: both keep the same protocol.
#pragma once

#include "base/config.h"
#include "base/status.h"
#include "sys/cuda/types.h"
#include "transport/pcie/host_ring.h"

namespace braid::comm {

struct RingEngine {
  bool has_bulk = false;
  int num_blocks = 0;         // of all flows of a call together: the same on all ranks
  int asked_lanes = 0;        // 0: as many as the blocks allow
  uint64_t window_bytes = 0;  // of stores that bulk copies may have under way, all lanes together

  /// Blocks of one flow.
  int lanes_of(int num_flows) const;
  /// The same while sums run, which need the memory, too: two thirds, unless a number was asked
  /// for.
  int lanes_beside_sums(int num_flows) const;
  /// Flows::open_tiles of a launch: the window's, shared by the lanes that send; 1 to 8. Fewer
  /// where slots are few and small.
  uint32_t open_tiles_of(const pcie::HostRing& ring, const pcie::Flows& flows) const;
};

/// Whether BRAID_GPU_RING is one of its words; invalid_argument.
Status check_ring_wish(const Config& config);

/// Errors: invalid_argument (BRAID_GPU_LANES out of range; BRAID_GPU_RING=bulk where it cannot be).
Result<RingEngine> choose_ring_engine(const Config& config, const sys::DeviceFacts& gpu);

/// Whether bulk copies can move them: all of this rank's addresses are multiples of 16.
bool are_whole_vectors(const pcie::Flows& flows);

}  // namespace braid::comm
