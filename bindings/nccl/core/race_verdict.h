// Who was faster, by what laps of a race took: pure functions of numbers that all ranks have alike,
// so all of them judge alike.
//
// NCCL has the call until braid has shown that it wins it. So the two errors are not alike: a call
// that braid would win and NCCL keeps costs what braid would have saved; one that braid loses and
// takes over is a broken promise. Hence braid must win by 3 % (5 % over nodes), beyond what chance may do, twice:
// over nodes in bursts, in single calls, and in single calls behind a long pause. In windows it must not lose in
// place nor out of place, and win in one of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace braid::nccl {

/// What the calls of one lap took.
struct LapTimes {
  double nccl_us = 0, braid_us = 0;
};

/// How much times of one lap may differ between ranks. A lap goes from a barrier of all ranks to
/// one, so they are equal but for what the barriers take; of single calls, but for when a rank wakes, too.
struct Agreement {
  double most_ratio = 1.5;
  double slack_us = 50;
};

/// What NCCL's time must be at least, by braid's. Over nodes more, where a network that others use
/// changes from day to day.
inline constexpr double kLeastGain = 1.03, kLeastGainOverNodes = 1.05;
/// Where braid need not win, for it wins elsewhere, but must not lose: what nobody would notice.
inline constexpr double kNoLoss = 0.99;

/// A lap as it counts: by its slowest rank. Nothing when a rank contradicts the others: its clock
/// or its library does not tell what happened, and nobody knows which of them does.
std::optional<LapTimes> slowest_of(std::span<const LapTimes> ranks, const Agreement& agreement);

enum class Verdict { kOpen, kBraid, kNccl };

/// kOpen: another lap may tell.
Verdict judge(std::span<const LapTimes> laps, double least_gain);

/// The same of laps of single calls, after as many as kSingleLaps at most.
Verdict judge_singles(std::span<const LapTimes> laps, double least_gain);
inline constexpr size_t kSingleLaps = 24;

/// The same of laps of single calls behind a long pause, which are few: after as many as kRestedLaps at most.
Verdict judge_rested(std::span<const LapTimes> laps, double least_gain);
inline constexpr size_t kRestedLaps = 12;

/// NCCL's time by braid's, the median of the laps' (docs/measured/nccl.md's figures). 0 of none.
double median_ratio(std::span<const LapTimes> laps);

}  // namespace braid::nccl
