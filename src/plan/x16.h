// The x16: a GPU's PCIe link, which the host path and the NIC have in common. Two ways over one
// resource: what both carry of a call may not be more than the x16 can in the call's time.
#pragma once

#include <cstdint>
#include <span>

#include "plan/plan.h"

namespace braid::plan {

/// Parts of kWhole of a message that the NIC may carry beside a host path that carries
/// `pcie_parts`, so that neither the NIC nor the x16 is busy for longer than `links`
/// (fabric::gpu_links) take for the message together. Without facts about a NIC: all that the host
/// path leaves.
uint32_t rdma_room(const Request& request, std::span<const fabric::Link> links,
                   uint32_t pcie_parts);

}  // namespace braid::plan
