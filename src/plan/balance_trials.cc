// Balancer: trials of links that were left out, and raises that are taken back.
#include <algorithm>
#include <cmath>

#include "plan/balance.h"
#include "plan/solve.h"

namespace braid::plan {

// Shares stay as they are: only the call that makes the trial has others. When no such call is ever
// seen, the next trial is made after as many windows again.
std::optional<Decision> Balancer::try_link(size_t link) {
  std::vector<double> weights = fractions();
  for (double& w : weights) w *= 1 - options_.trial_share;
  weights[link] = options_.trial_share;
  const int idle = std::exchange(links_[link].windows_idle, 0);
  trial_ = Trial{link, to_shares(weights)};
  return Decision{trial_->shares,
                  fmt::format("tries {} with {:.1f} % in one call, after {} windows without it",
                              links_[link].name, 100 * options_.trial_share, idle),
                  true};
}

// What the link's rate in the trial deserves decides. It began late, as in every call, and carried
// little: so its rate is guessed too low rather than too high.
std::optional<Decision> Balancer::judge_trial(std::span<const LinkSample> samples) {
  const size_t tried = trial_->link;
  trial_.reset();
  LinkState& link = links_[tried];
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
  if (link.is_down || shares_[tried] > 0 || seen.bytes == 0 || seen.finish_ns <= 0 ||
      others_bytes == 0)
    return std::nullopt;
  const auto took_ns = static_cast<double>(seen.finish_ns);
  const double deserved = static_cast<double>(seen.bytes) / took_ns / sum_rate;
  if (deserved >= options_.min_share) return bring_back(tried, deserved);
  // In calls: what the trial cost, against a call without it.
  const auto part = static_cast<double>(seen.bytes) / static_cast<double>(others_bytes);
  const double lost_calls = std::max(took_ns, others_ns) / (others_ns * (1 + part)) - 1;
  const double paid_windows = lost_calls / (options_.trial_cost * options_.window_calls);
  link.windows_to_probe =
      std::clamp(2 * link.windows_to_probe, options_.probe_windows, options_.max_probe_windows);
  constexpr double kMostWindows = 1 << 20;  // a link so slow that it is as good as gone
  link.windows_to_probe = std::max(
      link.windows_to_probe, static_cast<int>(std::min(std::ceil(paid_windows), kMostWindows)));
  return std::nullopt;
}

// With half of what it deserves: the rest is levelled. If calls take longer with it, it goes again.
std::optional<Decision> Balancer::bring_back(size_t link, double deserved) {
  const double part =
      std::min(std::max(options_.min_share, std::min(deserved / 2, options_.max_move)), most(link));
  const auto main = static_cast<size_t>(
      std::distance(shares_.begin(), std::max_element(shares_.begin(), shares_.end())));
  const double cost = links_[main].cost, error = links_[main].error;
  std::vector<double> weights = fractions();
  for (double& w : weights) w *= 1 - part;
  weights[link] = part;
  auto decision = apply(
      weights, fmt::format("{} is as fast as {:.1f} % of a message in a trial: it gets {:.1f} %",
                           links_[link].name, 100 * deserved, 100 * part));
  if (decision && options_.takes_back && cost > 0) raise_ = {main, link, part, cost, error};
  return decision;
}

std::optional<Decision> Balancer::take_back(const Extremes& now) {
  if (windows_to_raise_ > 0) --windows_to_raise_;
  if (!raise_) return std::nullopt;
  const Raise raise = *std::exchange(raise_, std::nullopt);
  const LinkState& slowest = links_[now.slowest];
  const double scatter = std::hypot(slowest.error, raise.error) / raise.cost;
  const double loss = slowest.cost / raise.cost - 1;
  if (loss <= std::max(options_.loss_band, scatter)) {
    hold_ = 0;
    return std::nullopt;
  }
  hold_ = std::clamp(2 * hold_, options_.hold_windows, options_.max_probe_windows);
  windows_to_raise_ = hold_;
  auto decision = shift(raise.to, raise.from, std::min(raise.part, fraction(raise.to)));
  if (decision)
    decision->why += fmt::format(": calls took {:.1f} % longer with it on {}", 100 * loss,
                                 links_[raise.to].name);
  return decision;
}

}  // namespace braid::plan
