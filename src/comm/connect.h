// Setting up a comm's links: who shares a host with whom, which links all ranks can open, a lane on
// each.
#pragma once

#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "comm/state.h"

namespace braid::comm {

/// Exchanges facts and fills state.fabric; collective.
Status discover_fabric(Comm::State& state, Deadline deadline);
/// Whether links, and what is balanced over them, can be as the options say: BRAID_SLOT, BRAID_DEPTH,
/// BRAID_NODES, BRAID_BALANCE_WINDOW. Pure; invalid_argument.
Status check_lane_options(const Config& config);
/// Opens the lanes that BRAID_LINKS names, or those that the fabric offers; collective, all ranks
/// open the same.
Status connect_links(Comm::State& state, Deadline deadline);
/// What is said where no link could be opened, by what each of them met: exhausted where one lacked
/// something that the operator may give, else unavailable.
Status no_link(int num_ranks, const std::vector<Status>& why);

}  // namespace braid::comm
