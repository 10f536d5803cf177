// Setting up a comm's links: who shares a host with whom, which links all ranks can open, a lane on
// each.
#pragma once

#include "base/clock.h"
#include "base/status.h"
#include "comm/state.h"

namespace braid::comm {

/// Exchanges facts and fills state.fabric; collective.
Status discover_fabric(Comm::State& state, Deadline deadline);
/// Opens the lanes that BRAID_LINKS names, or those that the fabric offers; collective, all ranks
/// open the same.
Status connect_links(Comm::State& state, Deadline deadline);

}  // namespace braid::comm
