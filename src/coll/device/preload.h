// Every kernel that calls of a comm may use, loaded before the first of them.
//
// A module is loaded by whoever first needs a kernel of it, and the driver lets no load end while a
// kernel runs on any GPU of the process. With one rank per process that is a short wait. Where
// several ranks are threads of one process it may be without end: one rank's kernel waits for the
// peer that waits for its kernel to be loaded (seen with all ranks on one thread, 2 H200).
#pragma once

#include <functional>

#include "base/status.h"
#include "coll/device/packets.h"

namespace braid::coll::device {

/// Asks `load` for every kind of call that has a kernel of its own.
Status for_each_kind(const std::function<Status(const PacketCall&)>& load);

/// Loads all that calls of `device` may use; some hundred kernels. In the context of the GPU.
/// Errors: those of comm::Device::kernel().
Status preload_kernels(comm::Device& device);

}  // namespace braid::coll::device
