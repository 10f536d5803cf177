// Stage 1 on GPUs: how much of a message a link should carry beside NVLink and the links before it,
// measured for the operations that can use it; of the first of them once per machine (share_cache.h).
#pragma once

#include <span>

#include "base/status.h"
#include "comm/device/device.h"

namespace braid::coll::device {

/// How much is measured; less is faster and says less.
struct TuneWork {
  uint64_t block_bytes = 128 << 20;  // half the buffer, for all-reduce and broadcast; and a quarter
  int rounds = 8;                    // of which the first warms up; 2 or more
  int64_t time_ns = 8'000'000'000;   // and no longer; less time, fewer rounds
  // Beyond these others' work was measured, too (tune_pace.h): the median of equal calls' times by
  // the least of them; the time of a quarter of a message by that of all; the least time with a
  // share over the link by what is left to NVLink of the time without; and for how long at
  // most a GPU runs something else.
  double most_spread = 1.5;
  double most_short_part = 0.6;
  double least_of_rest = 0.9;
  int64_t most_pause_ns = 100'000;
};

enum class TuneEnd {
  kDone,
  kTimeOver,   // before enough was measured; what was measured holds
  kDisturbed,  // by other work on the GPUs; what was measured before may be no better
  kNoMemory,   // on some rank
};

/// The largest share of a link that is tried.
inline constexpr double kMostTunedShare = 0.28;

/// Collective, at the making of a Device, within about two seconds (two GPUs; among eight it would
/// take some nine, and takes work.time_ns); takes device memory for as long. Runs each operation
/// with a few shares, in turn, and keeps the one whose slowest rank was fastest
/// (least_good_share()); a gain of less than 1 % over NVLink alone keeps NVLink alone.
/// What disturbs one operation, and goes by, costs time only. Ends alike on all ranks; unless
/// kDone, what was not measured is left to NVLink alone, and rank 0 warns.
/// A link that is tuned beside others (LinkTuning::kOneSize) is measured with blocks of
/// work.block_bytes alone; one whose share is given, not at all.
Result<TuneEnd> tune_shares(comm::Device& device, comm::DeviceLink& link, group::Group& group,
                            Deadline deadline, const TuneWork& work = {});

/// What calls with a share over a link took.
struct TimedShare {
  double share;
  double us;
};
/// The smallest share whose time is the best's, or no more than 0.3 % above it. Of one time or
/// more.
TimedShare least_good_share(std::span<const TimedShare> timed);

}  // namespace braid::coll::device
