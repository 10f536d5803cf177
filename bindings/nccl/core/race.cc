#include "bindings/nccl/core/race.h"

#include <algorithm>

namespace braid::nccl {

namespace {

// Laps of one size that may be thrown away, where ranks contradict each other, before it is NCCL's.
constexpr int kMostBadLaps = 12;
// Of the sizes that follow one another.
constexpr int64_t kGrowth = 4;

double median_us(const std::vector<LapTimes>& laps, double LapTimes::* side, int num_calls) {
  std::vector<double> times;
  for (const LapTimes& lap : laps) times.push_back(lap.*side);
  const auto middle = times.begin() + static_cast<long>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle / num_calls;
}

double mean_us(const std::vector<LapTimes>& laps, double LapTimes::* side) {
  double sum = 0;
  for (const LapTimes& lap : laps) sum += lap.*side;
  return sum / static_cast<double>(laps.size());
}

class Racing {
 public:
  Racing(Track& track, int64_t time_ns, const Agreement& agreement)
      : track_(track), time_ns_(time_ns), agreement_(agreement) {}

  Result<Outcome> all_sizes() {
    const SizeRange sizes = track_.sizes();
    for (size_t i = sizes.begin; i < sizes.end && !outcome_.is_over_time; ++i)
      BRAID_RETURN_IF_ERROR(size(i));
    return std::move(outcome_);
  }

 private:
  /// Heat by heat, as long as braid wins.
  Status size(size_t i) {
    num_bad_ = 0;
    lap_ns_ *= kGrowth;  // 0 before the first
    heat_ = track_.heats()[0];
    BRAID_RETURN_IF_ERROR(lap(i, 0, false));  // connects, and warms up
    Verdict verdict = Verdict::kBraid;
    size_t best = 0;  // where braid gained most
    double best_ratio = 0;
    for (size_t heat = 0; heat < track_.heats().size() && verdict == Verdict::kBraid; ++heat) {
      laps_.clear();
      heat_ = track_.heats()[heat];
      do {
        if (outcome_.is_over_time) return {};
        BRAID_RETURN_IF_ERROR(lap(i, heat_.is_again ? best : heat, true));
        verdict = verdict_so_far();
      } while (verdict == Verdict::kOpen);
      const double ratio = median_ratio(laps_);
      if (ratio > best_ratio) best = heat, best_ratio = ratio;
    }
    note(i, verdict == Verdict::kBraid);
    return {};
  }

  Verdict verdict_so_far() const {
    if (num_bad_ > kMostBadLaps) return Verdict::kNccl;
    switch (heat_.calls) {
      case Calls::kBursts: return judge(laps_, heat_.least_gain);
      case Calls::kSingles: return judge_singles(laps_, heat_.least_gain);
      case Calls::kRestedSingles: break;
    }
    return judge_rested(laps_, heat_.least_gain);
  }

  Status lap(size_t i, size_t heat, bool counts) {
    if (outcome_.elapsed_ns + lap_ns_ > time_ns_) {
      outcome_.is_over_time = true;
      return {};
    }
    const int num_calls = heat_.calls == Calls::kBursts ? calls_of_burst(i) : 1;
    BRAID_ASSIGN_OR_RETURN(const Lap ran, track_.run(i, num_calls, heat));
    const int64_t took_ns = std::max<int64_t>(ran.elapsed_ns - outcome_.elapsed_ns, 0);
    outcome_.elapsed_ns += took_ns;
    if (!counts) return {};  // NCCL connects at its first call, which no other one tells of
    lap_ns_ = took_ns;
    const std::optional<LapTimes> slowest = slowest_of(ran.ranks, agreement_);
    if (!slowest) {
      ++num_bad_;
      return {};
    }
    laps_.push_back(*slowest);
    return {};
  }

  void note(size_t i, bool is_won) {
    const uint32_t bit = uint32_t{1} << i;
    outcome_.choice.measured |= bit;
    if (is_won) outcome_.choice.won |= bit;
    RacedSize raced;
    raced.is_won = is_won;
    raced.ratio = median_ratio(laps_);
    if (!laps_.empty() && heat_.calls != Calls::kBursts) {
      raced.nccl_us = mean_us(laps_, &LapTimes::nccl_us);
      raced.braid_us = mean_us(laps_, &LapTimes::braid_us);
      raced.ratio = raced.nccl_us / raced.braid_us;
    } else if (!laps_.empty()) {
      raced.nccl_us = median_us(laps_, &LapTimes::nccl_us, calls_of_burst(i));
      raced.braid_us = median_us(laps_, &LapTimes::braid_us, calls_of_burst(i));
    }
    outcome_.sizes.push_back(raced);
  }

  Track& track_;
  const int64_t time_ns_;
  const Agreement agreement_;
  Outcome outcome_;
  Heat heat_{};
  std::vector<LapTimes> laps_;  // of it
  int num_bad_ = 0;
  int64_t lap_ns_ = 0;  // what the next one will take, as far as is known
};

}  // namespace

int calls_of_burst(size_t i) {
  constexpr std::array<int, kNumRaced> kCalls = {16, 16, 16, 8, 8, 4, 2, 2, 2};
  return kCalls[i];
}

Result<Outcome> race(Track& track, int64_t time_ns, const Agreement& agreement) {
  return Racing(track, time_ns, agreement).all_sizes();
}

}  // namespace braid::nccl
