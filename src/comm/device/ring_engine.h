// Which of its kernels moves a ring's flows (pcie/host_ring.h), and by how many blocks.
//
//   threads   512 threads a block copy; any address, any GPU
//   bulk      three threads a block order bulk asynchronous copies; whole vectors, sm_90 and later,
//             slots of 1, 2, 4 or 8 tiles. 31 GB/s alone on 2 H200 by 8 blocks where 16 of the
//             other had 29 (docs/decisions/0010-host-ring-by-bulk-copies.md)
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
  int num_blocks = 0;   // of all flows of a call together: the same on all ranks
  int asked_lanes = 0;  // 0: as many as the blocks allow

  /// Blocks of one flow.
  int lanes_of(int num_flows) const;
};

/// Errors: invalid_argument (BRAID_GPU_LANES out of range; BRAID_GPU_RING=bulk where it cannot be).
Result<RingEngine> choose_ring_engine(const Config& config, const sys::DeviceFacts& gpu);

/// Whether bulk copies can move them: all of this rank's addresses are multiples of 16.
bool are_whole_vectors(const pcie::Flows& flows);

}  // namespace braid::comm
