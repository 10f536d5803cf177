// Device memory that ranks of one process write into: freed by whoever lets go of it last.
//
// A rank that is a thread of this process has its peers' memory by their addresses; no mapping of
// its own keeps it. Its calls may still write there when the owner is through: what is aborted or
// has failed ends on every rank in its own time, and a broadcast's root goes ahead of greetings. A
// GPU that writes to freed memory is lost to the whole process.
//
//   owner  lend(), from the allocation on, before any peer learns the address
//   peers  borrow(), for as long as work of theirs may write there (window.h)
//
// Freeing waits for all work of the memory's GPU, which may itself wait for a call that a peer is
// yet to make. So memory is freed by its owner, in whose thread that is as it always was; where a
// peer is the last to let go, by a thread of its own, for which nobody waits.
#pragma once

#include <memory>

#include "sys/cuda/api.h"

namespace braid::nvlink {

/// Keeps memory as long as it lives.
using Hold = std::shared_ptr<const void>;

/// Takes over memory of cuda.alloc() on `device`; `cuda` outlives all holds and what is freed
/// behind them. The owner's, and those of peers, may end in any order. Threads: any.
Hold lend(sys::Cuda& cuda, int device, sys::DevicePtr memory);

/// Of memory that a rank of this process lends; null for any other. Threads: any.
Hold borrow(sys::DevicePtr memory);

/// Waits until all is freed whose last holder was a peer. For tests. Threads: any.
void await_frees();

}  // namespace braid::nvlink
