// The way into a call with device memory: one call at a time on the comm, and the comm's Device,
// which is made at the first such call.
#pragma once

#include <functional>

#include "base/status.h"
#include "comm/comm.h"
#include "comm/device/device.h"
#include "comm/state.h"

namespace braid::coll::device {

/// Runs `call` with the comm's Device for GPU `ordinal`. The first time this is collective and
/// takes up to seconds. Errors: those of CallGuard and Device::create; invalid_argument when the
/// comm uses another GPU already.
Status on_device(comm::Comm& comm, int ordinal, const std::function<Status(comm::Device&)>& call);

/// What that does the first time: makes the Device, loads its kernels and tunes it. Collective; in
/// a call on a comm that has none, with the context of `cuda`'s GPU `ordinal`. What all ranks find
/// missing leaves the comm as it was; what one meets later, amid tuning, ends the comm on all.
Status attach(comm::Comm::State& state, sys::Cuda& cuda, int ordinal);

}  // namespace braid::coll::device
