// What an Observer is told of a call on host memory.
#pragma once

#include <vector>

#include "coll/host/moves.h"
#include "comm/observe/note.h"
#include "comm/state.h"

namespace braid::coll {

/// Of the call of `rank` among `size`.
comm::CallNote note_of(const Moves& moves, int rank, int size);
/// What the links of the comm's last call did. Shares are those of the plan, which a call that
/// failed has not reported.
std::vector<comm::LinkNote> link_notes_of(const comm::CallReport& report, bool is_ok);

}  // namespace braid::coll
