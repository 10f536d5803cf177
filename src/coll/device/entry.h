// The way into a call with device memory: one call at a time on the comm, and the comm's Device,
// which is made at the first such call.
#pragma once

#include <functional>

#include "base/status.h"
#include "comm/comm.h"
#include "comm/device/device.h"
#include "comm/state.h"

namespace braid::coll::device {

/// How much of its GPU's memory a Device begins with.
enum class Memory {
  kAll,    // what the options say; it is tuned, too
  kSmall,  // enough for messages of up to kSmallBytes: the rest, and tuning, with make_room()
};
/// The largest small message, as all ranks' blocks: they go as they would with all memory.
inline constexpr uint64_t kSmallBytes = 8 << 20;

/// Runs `call` with the comm's Device for GPU `ordinal`. The first time this is collective and
/// takes up to seconds. Errors: those of CallGuard and Device::create; invalid_argument when the
/// comm uses another GPU already. `cuda` makes the Device.
Status on_device(comm::Comm& comm, int ordinal, const std::function<Status(comm::Device&)>& call,
                 Memory memory = Memory::kAll, sys::Cuda& cuda = sys::real_cuda());

/// Collective, in a call on a comm that was attached with kSmall: takes the rest of the memory, and
/// tunes. What all ranks find missing, as memory, leaves the comm as it was.
Status make_room(comm::Comm::State& state);

/// What that does the first time: makes the Device, loads its kernels and tunes it. Collective; in
/// a call on a comm that has none, with the context of `cuda`'s GPU `ordinal`. What all ranks find
/// missing leaves the comm as it was; what one meets later, amid tuning, ends the comm on all.
Status attach(comm::Comm::State& state, sys::Cuda& cuda, int ordinal, Memory memory = Memory::kAll);

}  // namespace braid::coll::device
