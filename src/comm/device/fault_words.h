// A kernel's note on why it gave up, as a Status: timeout or peer_lost with the rank, block, peer
// and numbers; invalid_argument when a peer meant another call.
#pragma once

#include "base/status.h"
#include "transport/nvlink/team.h"

namespace braid::comm {

Status in_words(const device::Fault& fault);

}  // namespace braid::comm
