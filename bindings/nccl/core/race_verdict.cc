#include "bindings/nccl/core/race_verdict.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace braid::nccl {

namespace {

// A lap is a win when it is won by that much. Only wins are counted, not by how much: a lap that was
// held up is one lap, whatever it took. Between two laps of chance alone wins and losses walk at
// random, and who is ahead by so many seldom is by chance (Wald's sequential test): where braid wins
// a third of laps, 12 ahead happen once in 4,000 races, and twice in a row (race.h) once in 16
// million. Where it wins two thirds NCCL is 7 ahead once in 128.
constexpr int kAheadForBraid = 12, kAheadForNccl = 7;
constexpr size_t kMostLaps = 41;  // then it is too close

// Single calls over a network may be of two kinds (docs/measured/nodes.md has 0.8 ms and 5, where NCCL took 2.2). A
// median or a count of wins sees the more frequent kind alone, the minimum the better one. The mean of
// what braid saves weighs each by how often it comes and by what it costs, and it must be positive by
// twice its standard error: two kinds make that error large, so that a lucky number of quick laps is not
// enough, and one lap of NCCL's that was held up adds as much to it as to the mean. NCCL may win early,
// braid after all laps only: who looks often is lucky once.
constexpr double kStandardErrors = 2;
constexpr size_t kLeastSingleLaps = 7;

// Behind a long pause laps are won or not, as in bursts: one that was held up is one of few here. Who is slow in half
// of them wins nine of twelve once in 14 races, in two thirds once in 260. Beside that the mean must not be NCCL's: a
// call that was slow in two laps of twelve, by five times, won ten of them by a third and lost in use
// (docs/measured/nodes.md).
constexpr size_t kMostRestedLost = 3;

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<long>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

bool is_won(const LapTimes& lap, double least_gain) {
  return lap.nccl_us >= least_gain * lap.braid_us;
}

bool agree(double least_us, double most_us, const Agreement& agreement) {
  return most_us <= agreement.most_ratio * least_us + agreement.slack_us;
}

}  // namespace

std::optional<LapTimes> slowest_of(std::span<const LapTimes> ranks, const Agreement& agreement) {
  if (ranks.empty()) return std::nullopt;
  LapTimes least = ranks[0], most = ranks[0];
  for (const LapTimes& rank : ranks) {
    if (!(rank.nccl_us > 0 && rank.braid_us > 0)) return std::nullopt;
    least = {std::min(least.nccl_us, rank.nccl_us), std::min(least.braid_us, rank.braid_us)};
    most = {std::max(most.nccl_us, rank.nccl_us), std::max(most.braid_us, rank.braid_us)};
  }
  const bool is_one_story = agree(least.nccl_us, most.nccl_us, agreement) &&
                            agree(least.braid_us, most.braid_us, agreement);
  return is_one_story ? std::optional(most) : std::nullopt;
}

double median_ratio(std::span<const LapTimes> laps) {
  std::vector<double> ratios;
  for (const LapTimes& lap : laps) ratios.push_back(lap.nccl_us / lap.braid_us);
  return ratios.empty() ? 0 : median_of(std::move(ratios));
}

Verdict judge_singles(std::span<const LapTimes> laps, double least_gain) {
  if (laps.size() < kLeastSingleLaps) return Verdict::kOpen;
  const auto num = static_cast<double>(laps.size());
  const auto saved = [&](const LapTimes& lap) { return lap.nccl_us - least_gain * lap.braid_us; };
  double mean = 0, squares = 0;
  for (const LapTimes& lap : laps) mean += saved(lap) / num;
  for (const LapTimes& lap : laps) squares += (saved(lap) - mean) * (saved(lap) - mean);
  const double margin = kStandardErrors * std::sqrt(squares / (num - 1) / num);
  if (mean < -margin) return Verdict::kNccl;
  if (laps.size() < kSingleLaps) return Verdict::kOpen;
  return mean > margin ? Verdict::kBraid : Verdict::kNccl;
}

Verdict judge_rested(std::span<const LapTimes> laps, double least_gain) {
  const auto won = static_cast<size_t>(std::count_if(
      laps.begin(), laps.end(), [&](const LapTimes& lap) { return is_won(lap, least_gain); }));
  if (laps.size() - won > kMostRestedLost) return Verdict::kNccl;
  if (won < kRestedLaps - kMostRestedLost) return Verdict::kOpen;
  double saved_us = 0;
  for (const LapTimes& lap : laps) saved_us += lap.nccl_us - lap.braid_us;
  return saved_us > 0 ? Verdict::kBraid : Verdict::kNccl;
}

Verdict judge(std::span<const LapTimes> laps, double least_gain) {
  int ahead = 0;
  for (const LapTimes& lap : laps) ahead += is_won(lap, least_gain) ? 1 : -1;
  if (ahead >= kAheadForBraid) return Verdict::kBraid;
  const bool is_over = ahead <= -kAheadForNccl || laps.size() >= kMostLaps;
  return is_over ? Verdict::kNccl : Verdict::kOpen;
}

}  // namespace braid::nccl
