// A race from its beginning to its end: what is known already, whether anybody disturbs it, the
// race, and what is kept of it. Collective; every rank has the same answer.
#pragma once

#include <functional>

#include "base/clock.h"
#include "base/config.h"
#include "bindings/nccl/core/race_track.h"

namespace braid::nccl {

struct RaceTerms {
  const Config& config;
  Deadline deadline;    // for the ranks to tell each other
  int64_t time_ns = 0;  // and for the race
  /// Collective, before anything is timed: whether there is memory for braid's calls. An error is
  /// the end of all.
  std::function<Result<bool>()> make_room;
};

struct Held {
  braid_nccl_choice choice{};
  int64_t elapsed_ns = 0;  // of the time; alike on all ranks
};

/// What is not measured is in no bit of the choice: it is NCCL's. After an error ranks may disagree,
/// and calls may be left that do not end.
Result<Held> hold_race(const Entrants& entrants, const RaceTerms& terms);

}  // namespace braid::nccl
