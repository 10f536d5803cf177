// RollHost: the end of rolls over nodes in the process that made their ids, and, from a communicator's
// first call on, in its rank 0's (across.h). One thread, one poll loop, no decision that could wait for
// a rank.
//
//   greeting ---hello proved---> let in ---sign---> signed ---come---> at a meeting
//
// A meeting has one outcome, which this thread decides once, and everybody who comes to it is told
// it, also who comes later: all ranks came, with everyone's words; or not. It comes to nothing as
// soon as that is certain:
//
//   - fewer ranks have signed than there are. Ranks sign before NCCL's init, and come to a meeting
//     after it: when one of them comes, all that will ever sign have signed. So a rank without
//     braid, or one that could not reach this roll, is waited for by nobody;
//   - a rank that signed has ended its connection;
//   - the patience of the rank that came first is over.
//
// A rank whose words were not heard in time is not among those who came. So what all ranks must do
// together is done by all or by none, and a rank that cannot hear the outcome knows that it does
// not know it: that is an error there, and no rank guesses.
//
// Strangers get what the store gives them (group/store.h): a connection, some seconds, one frame.
//
// Threads: any may add ids; all else belongs to the roll's thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/status.h"
#include "bindings/nccl/core/nodes/mark.h"
#include "sys/net/api.h"

namespace braid::nccl {

/// Of the meeting that answers one word more than there are ranks: where their group is served, by a
/// store of this process, as "port token".
inline constexpr const char* kGroupTopic = "group";

class RollHost {
 public:
  /// Listens on `at`, whatever its port. `most_ranks` may be let in at a time, of all its rolls; 0: a
  /// quarter of the descriptors that the process may have open.
  static Result<std::unique_ptr<RollHost>> serve(sys::Endpoint at, size_t most_ranks = 0);
  virtual ~RollHost() = default;

  /// A mark for one id more. `job_token` may be empty: then who has the id may sign.
  virtual Result<Mark> add_id(const std::string& job_token) = 0;
};

}  // namespace braid::nccl
