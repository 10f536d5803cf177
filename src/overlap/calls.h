// The three operations on the memory of one comm's GPUs. A call is collective: all ranks make it
// with equal shapes and choices, which a signature proves before anything is written.
//
// Returns: ok = enqueued on `stream`. A failure that shows later (a lost peer, a deadline, ranks that
// called different things) comes back from the comm's next call and from Device::status(); what the
// call wrote is no result then. Threads: as comm::Device's.
#pragma once

#include "base/status.h"
#include "comm/device/device.h"
#include "overlap/launch.h"

namespace braid::overlap {

enum class Call : int32_t {
  kAgGemm = 0,
  kGemmRs = 1,
  kGemmAr = 2,          // shards are reduced by their owners, then stored to all
  kGemmArExchange = 3,  // whole parts to everybody: few rows
};

/// Memory that all ranks have registered with the comm (Device::register_memory), zeroed before, of
/// equal size, for calls of any shape that fits. Not to be touched by others.
struct Workspace {
  sys::DevicePtr at = 0;
  uint64_t bytes = 0;
};
/// What a call needs of it.
uint64_t workspace_bytes(Call call, const Gemm& gemm, const Choice& choice);

/// Blocks of each rank where a choice says nothing: one for every multiprocessor, or, of ranks that
/// share a GPU, as many as find a place at once.
int32_t num_blocks(const comm::Device& device, const Launcher& launcher);

/// gemm.a is what this rank has: its shard [shard_rows, depth] (kAgGemm), or all rows [ranks *
/// shard_rows, depth] (kGemmRs, kGemmAr), or [shard_rows, depth] (kGemmArExchange). c gets all rows,
/// or for kGemmRs the own shard. Errors: invalid_argument (shapes, a workspace that is too small or
/// not registered), those of Device. Rank and ranks are the comm's.
Status enqueue(Call call, comm::Device& device, Launcher& launcher, const Workspace& workspace,
               const Gemm& gemm, const Choice& choice, sys::DevicePtr c, sys::Stream stream);

}  // namespace braid::overlap
