// Balancer: what keeps a link that suddenly fails to carry its share from costing much: alarms, and
// trials of links that were left out.
#include <algorithm>
#include <cmath>

#include "plan/balance.h"
#include "plan/solve.h"

namespace braid::plan {

BalanceOptions options_for_enqueued_calls() {
  BalanceOptions options;
  options.opening_windows = 4;  // short ones: what tuning left is found in a few calls
  options.min_share = 0.02;
  options.trial_share = 0.02;       // less would be all latency where calls are short
  options.max_probe_windows = 128;  // trial_cost alone makes dear ones more seldom
  options.alarm_factor = 3;
  return options;
}

// Shares stay as they are: only the call that makes the trial has others. When no such call is ever
// seen, the next trial is made after as many windows again.
std::optional<Decision> Balancer::try_link(size_t link) {
  std::vector<double> weights = fractions();
  for (double& w : weights) w *= 1 - options_.trial_share;
  weights[link] = options_.trial_share;
  const int idle = std::exchange(links_[link].windows_idle, 0);
  Shares shares = to_shares(weights);
  trial_ = Trial{link, shares};
  return Decision{std::move(shares),
                  fmt::format("tries {} with {:.1f} % in one call, after {} windows without it",
                              links_[link].name, 100 * options_.trial_share, idle),
                  true};
}

// `lost_calls`: what the next trial will cost, if nothing has changed until then.
void Balancer::leave_out(size_t link, double lost_calls) {
  LinkState& left = links_[link];
  left.windows_idle = 0;
  left.windows_to_probe =
      std::clamp(2 * left.windows_to_probe, options_.probe_windows, options_.max_probe_windows);
  constexpr double kMostWindows = 1 << 20;  // a link so slow that it is as good as gone
  const double paid_windows = lost_calls / (options_.trial_cost * options_.window_calls);
  left.windows_to_probe = std::max(
      left.windows_to_probe, static_cast<int>(std::min(std::ceil(paid_windows), kMostWindows)));
}

// By what a link that still has its share took, beside another one.
double Balancer::lost_in_trial(size_t link, size_t other) const {
  if (options_.trial_share <= 0 || shares_[link] == 0 || links_[other].cost <= 0) return 0;
  const double trial_cost = links_[link].cost / fraction(link) * options_.trial_share;
  return std::max(0.0, trial_cost * fraction(other) / links_[other].cost - 1);
}

// A link that was done before the others alone would have been has cost nothing: it may come back.
std::optional<Decision> Balancer::judge_trial(size_t tried, std::span<const LinkSample> samples) {
  double sum_rate = 0, others_ns = 0;
  uint64_t others_bytes = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].bytes == 0 || samples[i].finish_ns <= 0) continue;
    sum_rate += static_cast<double>(samples[i].bytes) / static_cast<double>(samples[i].finish_ns);
    if (i == tried) continue;
    others_ns = std::max(others_ns, static_cast<double>(samples[i].finish_ns));
    others_bytes += samples[i].bytes;
  }
  const LinkSample& seen = samples[tried];
  if (links_[tried].is_down || shares_[tried] > 0 || seen.bytes == 0 || seen.finish_ns <= 0 ||
      others_bytes == 0)
    return std::nullopt;
  const auto took_ns = static_cast<double>(seen.finish_ns);
  const double part = static_cast<double>(seen.bytes) / static_cast<double>(others_bytes);
  const double alone_ns = others_ns * (1 + part);
  if (took_ns <= alone_ns)
    return bring_back(tried, static_cast<double>(seen.bytes) / took_ns / sum_rate);
  leave_out(tried, took_ns / alone_ns - 1);
  return std::nullopt;
}

// With half of what it deserves: the rest is levelled.
std::optional<Decision> Balancer::bring_back(size_t link, double deserved) {
  const double part =
      std::min(std::max(options_.min_share, std::min(deserved / 2, options_.max_move)), most(link));
  std::vector<double> weights = fractions();
  for (double& w : weights) w *= 1 - part;
  weights[link] = part;
  return apply(weights,
               fmt::format("{} is as fast as {:.1f} % of a message in a trial: it gets {:.1f} %",
                           links_[link].name, 100 * deserved, 100 * part));
}

// A window of calls that take a hundred times as long is a hundred windows. Two calls, since one
// alone may have been held up by anything.
std::optional<Decision> Balancer::alarm(std::span<const LinkSample> samples, double call_bytes) {
  if (options_.alarm_factor <= 0) return std::nullopt;
  const auto main = static_cast<size_t>(
      std::distance(shares_.begin(), std::max_element(shares_.begin(), shares_.end())));
  if (samples[main].bytes == 0 || samples[main].finish_ns <= 0) return std::nullopt;
  size_t slowest = main;
  double sum_rate = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].bytes == 0 || samples[i].finish_ns <= 0) continue;
    sum_rate += static_cast<double>(samples[i].bytes) / static_cast<double>(samples[i].finish_ns);
    if (samples[i].finish_ns > samples[slowest].finish_ns) slowest = i;
  }
  const LinkSample& late = samples[slowest];
  const double alone_ns = static_cast<double>(samples[main].finish_ns) * call_bytes /
                          static_cast<double>(samples[main].bytes);
  const auto took_ns = static_cast<double>(late.finish_ns);
  const bool is_late = slowest != main && took_ns > options_.alarm_factor * alone_ns;
  const bool is_again = alarming_calls_ > 0 && slowest == alarming_link_;
  alarming_calls_ = is_late ? (is_again ? alarming_calls_ + 1 : 1) : 0;
  alarming_link_ = slowest;
  if (alarming_calls_ < 2) return std::nullopt;
  alarming_calls_ = 0;
  for (const size_t link : {slowest, main})  // what shift() tells
    links_[link].cost = static_cast<double>(samples[link].finish_ns) / call_bytes;
  median_call_bytes_ = call_bytes;
  const double deserved = static_cast<double>(late.bytes) / took_ns / sum_rate;
  return shift(slowest, main, fraction(slowest) - deserved / 2);
}

}  // namespace braid::plan
