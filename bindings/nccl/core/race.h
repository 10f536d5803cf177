// A race of braid and NCCL in one operation: in which order what is timed, and when it ends. Where
// the times come from is the track's matter (race_track.h), what they mean the judge's
// (race_verdict.h).
//
// Collective without a word of its own: every rank runs the same code over the same numbers, which
// the track has exchanged. So all ranks ask for the same laps, end at the same one, and have the
// same outcome; a rank whose clock or library lies cannot bring them apart.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "bindings/nccl/choice.h"
#include "bindings/nccl/core/race_verdict.h"

namespace braid::nccl {

/// One lap of each in turn, as all ranks were told.
struct Lap {
  std::vector<LapTimes> ranks;
  int64_t elapsed_ns = 0;  // since the race began, on the rank that began first
};

/// Some of kRacedBytes, one behind the other.
struct SizeRange {
  size_t begin = 0, end = kNumRaced;
  static constexpr SizeRange of(bool is_large) {
    return is_large ? SizeRange{kNumSmall, kNumRaced} : SizeRange{0, kNumSmall};
  }
  size_t num() const { return end - begin; }
};

/// What laps are of.
enum class Calls {
  kBursts,  // one behind the other
  kSingles,  // as a program makes them: behind a pause, and behind the other one's; the slower of two
  kRestedSingles,  // the same behind so long a pause that a connection has come to rest
};

/// Some laps of a size, and what braid must win in them.
struct Heat {
  Calls calls;
  double least_gain;
  bool is_again = false;  // of the calls of that heat before it in which braid gained most
};

class Track {
 public:
  virtual ~Track() = default;
  /// Those that are to be run, and that there is memory for.
  virtual SizeRange sizes() const = 0;
  /// A size's heats, one behind the other: braid must win all.
  virtual std::span<const Heat> heats() const = 0;
  /// Collective: a lap of `num_calls` calls of size kRacedBytes[i], as they are in this heat, which is none
  /// that is run again. unsupported, on all ranks: NCCL has no such call.
  virtual Result<Lap> run(size_t i, int num_calls, size_t heat) = 0;
};

/// Of one size, by its last heat.
struct RacedSize {
  double nccl_us = 0, braid_us = 0;  // of a call, the medians; of single calls the means
  double ratio = 0;                  // the laps' median; of single calls that of the means
  bool is_won = false;
};

struct Outcome {
  braid_nccl_choice choice{};
  std::vector<RacedSize> sizes;  // those that were measured
  int64_t elapsed_ns = 0;
  bool is_over_time = false;  // larger ones were not, for want of time
};

/// Ends within `time_ns`, but for the lap that is under way then.
Result<Outcome> race(Track& track, int64_t time_ns, const Agreement& agreement);

/// The calls of a burst: enough for clocks, and for what ranks do before each.
int calls_of_burst(size_t i);

}  // namespace braid::nccl
