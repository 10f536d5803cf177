// Every kernel that calls of a comm may use, loaded before the first of them.
//
// A load does not end while a kernel runs on any GPU of the process (sys/cuda/loaded_kernels.h).
// Without end it was where ranks are threads of one process, one's kernel waiting for the peer that
// waited for its own to be loaded (all ranks on one thread, 2 H200), and where a rank had enqueued
// a small call, which its peer never came to, and went on to a large one: its host stood in the
// load and never came to abort the comm (a rank per process, 2 H200).
#pragma once

#include <functional>

#include "base/status.h"
#include "coll/device/packets.h"

namespace braid::coll::device {

/// Asks `load` for every kind of call that has a kernel of its own.
Status for_each_kind(const std::function<Status(const CollectiveCall&)>& load);

/// Loads all that calls of `device` may use; some hundred kernels. In the context of the GPU.
/// Errors: those of comm::KernelCache::find().
Status preload_kernels(comm::Device& device);

}  // namespace braid::coll::device
