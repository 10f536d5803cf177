// Equal blocks from every rank to every rank over all links at once: what all_gather and all_to_all do
// with messages that no kernel takes.
#pragma once

#include "base/status.h"
#include "coll/device/call.h"
#include "coll/device/collective_call.h"
#include "comm/device/device.h"

namespace braid::coll::device {

/// Copy engines carry the beginning of every block (rounds.h), the host ring what comes then, the NIC
/// the end; the rank's own block is copied meanwhile. `what` is an all_gather, which sends one block
/// to everybody, or an all_to_all, which sends one to each. In place, a block of an all_to_all may
/// not be overwritten before it was sent: then all of it goes through scratch, where a piece is taken
/// out only after ours of that round has left.
Status exchange_equal_blocks(comm::Device& device, sys::Stream stream, Call& call,
                             const CollectiveCall& what, const comm::SymmetricAddress& landing);

}  // namespace braid::coll::device
