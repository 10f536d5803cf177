// Memory for a NIC: pinned, and made known to it.
#pragma once

#include "sys/fabric/api.h"
#include "sys/verbs/library.h"

namespace braid::sys::verbs {

/// Registers `memory` with the least rights that its use needs. unsupported for a GPU's memory that
/// the device does not reach, exhausted where the system pins no more.
Result<MemoryRegion> register_with(const Library& library, ibv_pd* protection,
                                   const FabricMemory& memory);

/// Whether the device's driver takes dma-bufs at all. Whether it reaches a GPU, only registering
/// the GPU's memory tells.
bool takes_dmabufs(const Library& library, ibv_pd* protection);

}  // namespace braid::sys::verbs
