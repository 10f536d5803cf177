// libibverbs behind sys/fabric's interface: reliable connections to one peer each, for ConnectX and
// other RDMA NICs, and for soft-RoCE.
//
// DomainRequest::address is a numeric address of the NIC's, "mlx5_0", "mlx5_0:PORT",
// "mlx5_0:PORT:GID_INDEX", or empty for the first active port; provider is not looked at.
// EndpointRequest::num_peers must be 1. Two endpoints add each other before either writes.
#pragma once

#include "sys/fabric/api.h"

namespace braid::sys {

/// The real libibverbs, opened once and never closed; unavailable when it is not installed, or was
/// not when braid was built.
Result<FabricLibrary*> real_verbs();

}  // namespace braid::sys
