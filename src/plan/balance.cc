#include "plan/balance.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/units.h"
#include "plan/solve.h"

namespace braid::plan {

namespace {

// One standard error. Scatter alone passes that often, but seldom twice running with the same
// slowest link, which is what a small move needs; two would leave 5 % of the throughput lying where
// calls scatter by 5 %.
constexpr double kSigmas = 1;
// Standard error of a median from the median absolute deviation, for normal scatter: 1.4826 MAD is
// sigma, and a median is 1.2533 times as uncertain as a mean.
constexpr double kMadToError = 1.4826 * 1.2533;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double median_error(const std::vector<double>& values, double center) {
  std::vector<double> deviations;
  for (const double v : values) deviations.push_back(std::abs(v - center));
  return kMadToError * median(std::move(deviations)) /
         std::sqrt(static_cast<double>(values.size()));
}

}  // namespace

Balancer::Balancer(Shares start, std::vector<std::string> link_names, const BalanceOptions& options)
    : shares_(std::move(start)), links_(link_names.size()), options_(options) {
  BRAID_CHECK(shares_.size() == links_.size() && !shares_.empty(), "{} shares, {} links",
              shares_.size(), links_.size());
  BRAID_CHECK(options_.window_calls > 0, "a window of {} calls", options_.window_calls);
  for (size_t i = 0; i < links_.size(); ++i) {
    links_[i].name = std::move(link_names[i]);
    links_[i].weight_when_up = fraction(i);
  }
}

std::optional<Decision> Balancer::observe(const Shares& used, std::span<const LinkSample> samples) {
  BRAID_CHECK(samples.size() == links_.size(), "{} samples for {} links", samples.size(),
              links_.size());
  if (is_frozen_) return std::nullopt;
  if (trial_ && used == trial_->shares) {
    const size_t tried = trial_->link;
    trial_.reset();
    return judge_trial(tried, samples);
  }
  if (used != shares_) return std::nullopt;
  double call_bytes = 0;
  for (const LinkSample& sample : samples) call_bytes += static_cast<double>(sample.bytes);
  if (call_bytes == 0) return std::nullopt;
  if (auto decision = alarm(samples, call_bytes)) return decision;
  add_samples(samples, call_bytes);
  if (++calls_ < window_calls()) return std::nullopt;
  std::optional<Decision> decision = close_window();
  ++windows_;
  start_window();
  return decision;
}

void Balancer::add_samples(std::span<const LinkSample> samples, double call_bytes) {
  call_bytes_.push_back(call_bytes);
  for (size_t i = 0; i < links_.size(); ++i) {
    if (shares_[i] == 0 || samples[i].bytes == 0 || samples[i].finish_ns <= 0) continue;
    links_[i].cost_samples.push_back(static_cast<double>(samples[i].finish_ns) / call_bytes);
    links_[i].weight_samples.push_back(static_cast<double>(samples[i].bytes) / call_bytes);
  }
}

int Balancer::window_calls() const {
  return is_opening() ? std::min(options_.opening_calls, options_.window_calls)
                      : options_.window_calls;
}

void Balancer::start_window() {
  calls_ = 0;
  call_bytes_.clear();
  for (LinkState& link : links_) {
    link.cost_samples.clear();
    link.weight_samples.clear();
  }
}

std::optional<Decision> Balancer::close_window() {
  const Extremes now = measure();
  if (now.num_active >= 2) {
    if (auto decision = back_off(now)) return decision;
    if (auto decision = level(now)) return decision;
  }
  return probe();
}

Balancer::Extremes Balancer::measure() {
  Extremes now;
  median_call_bytes_ = median(call_bytes_);
  for (size_t i = 0; i < links_.size(); ++i) {
    LinkState& link = links_[i];
    // Calls too small to reach a link say nothing about it: half a window of samples, or the link
    // sits this one out.
    link.is_measured = !link.cost_samples.empty() &&
                       2 * link.cost_samples.size() >= static_cast<size_t>(window_calls());
    if (!link.is_measured) continue;
    link.cost = median(link.cost_samples);
    link.weight = median(link.weight_samples);
    link.error = median_error(link.cost_samples, link.cost);
    if (now.num_active == 0) now.slowest = now.fastest = now.main = i;
    if (link.cost > links_[now.slowest].cost) now.slowest = i;
    if (link.cost < links_[now.fastest].cost) now.fastest = i;
    if (shares_[i] > shares_[now.main]) now.main = i;
    ++now.num_active;
  }
  if (now.num_active > 0) now.imbalance = 1 - links_[now.fastest].cost / links_[now.slowest].cost;
  return now;
}

// The imbalance that scatter alone would explain.
double Balancer::noise(const Extremes& now) const {
  return kSigmas * std::hypot(links_[now.slowest].error, links_[now.fastest].error) /
         links_[now.slowest].cost;
}

std::optional<Decision> Balancer::back_off(const Extremes& now) {
  const LinkState& slow = links_[now.slowest];
  const LinkState& main = links_[now.main];
  const double main_alone = main.cost / main.weight;
  const bool is_losing = now.slowest != now.main && slow.cost > main_alone;
  losing_windows_ = is_losing ? losing_windows_ + 1 : 0;
  if (losing_windows_ < 2) return std::nullopt;
  losing_windows_ = 0;
  double sum_rate = 0;
  for (const LinkState& link : links_)
    if (link.is_measured) sum_rate += link.weight / link.cost;
  const double deserved = slow.weight / slow.cost / sum_rate;
  return shift(now.slowest, now.main, fraction(now.slowest) - deserved / 2);
}

std::optional<Decision> Balancer::level(const Extremes& now) {
  const double band = now.slowest == now.main ? options_.dead_band : options_.eager_dead_band;
  if (now.imbalance <= std::max(band, noise(now))) {
    agreeing_windows_ = 0;
    return std::nullopt;
  }
  const bool agrees = has_agreement(now);
  if (!agrees && !is_opening() && now.imbalance < options_.large_imbalance) return std::nullopt;
  agreeing_windows_ = 0;
  return shift(now.slowest, now.fastest, move_size(now));
}

bool Balancer::has_agreement(const Extremes& now) {
  const bool is_same = agreeing_windows_ > 0 && now.slowest == last_slowest_;
  agreeing_windows_ = is_same ? agreeing_windows_ + 1 : 1;
  last_slowest_ = now.slowest;
  return agreeing_windows_ >= 2;
}

// d from s to f levels them when cost_s (1 - d / weight_s) = cost_f (1 + d / weight_f).
double Balancer::move_size(const Extremes& now) const {
  const LinkState& s = links_[now.slowest];
  const LinkState& f = links_[now.fastest];
  const double level = (s.cost - f.cost) / (s.cost / s.weight + f.cost / f.weight);
  return std::min(options_.gain * level, options_.max_move);
}

std::optional<Decision> Balancer::shift(size_t from, size_t to, double part) {
  std::vector<double> weights = fractions();
  part = std::min(part, most(to) - weights[to]);
  if (part <= 0 && most(to) < 1) return std::nullopt;
  const bool is_left_out = weights[from] - part < options_.min_share;
  part = is_left_out ? weights[from] : std::max(part, 0.0);
  if (is_left_out) leave_out(from, lost_in_trial(from, to));
  weights[from] -= part;
  weights[to] += part;
  return apply(weights, fmt::format("moved {:.1f} % from {} to {} ({}){}", 100 * part,
                                    links_[from].name, links_[to].name, times(from, to),
                                    is_left_out ? ", too little was left for it" : ""));
}

// Looks again at a link that was left out. A link that has grown since its last probe has proved
// itself.
std::optional<Decision> Balancer::probe() {
  for (size_t i = 0; i < links_.size(); ++i) {
    LinkState& link = links_[i];
    if (link.is_down || link.windows_to_probe == 0) continue;
    if (fraction(i) >= 2 * options_.min_share) link.windows_to_probe = 0;
    if (shares_[i] > 0 || ++link.windows_idle < link.windows_to_probe) continue;
    if (options_.trial_share > 0) return try_link(i);
    std::vector<double> weights = fractions();
    for (double& w : weights) w *= 1 - options_.min_share;
    weights[i] = options_.min_share;
    return apply(weights, fmt::format("tries {} again with {:.1f} % after {} windows without it",
                                      link.name, 100 * options_.min_share, link.windows_idle));
  }
  return std::nullopt;
}

std::optional<Decision> Balancer::link_down(size_t link) {
  if (links_[link].is_down) return std::nullopt;
  links_[link].is_down = true;
  std::string why = fmt::format("{} is down: its {:.1f} % go to the other links", links_[link].name,
                                100 * fraction(link));
  return follow_weights(std::move(why));
}

std::optional<Decision> Balancer::link_up(size_t link) {
  if (!links_[link].is_down) return std::nullopt;
  links_[link].is_down = false;
  std::optional<Decision> decision = follow_weights("");
  if (decision)
    decision->why =
        fmt::format("{} is back with {:.1f} %", links_[link].name, 100 * fraction(link));
  return decision;
}

double Balancer::fraction(size_t link) const { return static_cast<double>(shares_[link]) / kWhole; }

std::vector<double> Balancer::fractions() const {
  std::vector<double> fractions;
  for (size_t i = 0; i < shares_.size(); ++i) fractions.push_back(fraction(i));
  return fractions;
}

// Links that are up divide among them what they had together; the weights of links that are down
// stay as they were.
std::optional<Decision> Balancer::apply(const std::vector<double>& fractions, std::string why) {
  double sum_up = 0;
  for (const LinkState& link : links_) sum_up += link.is_down ? 0 : link.weight_when_up;
  if (sum_up == 0) sum_up = 1;
  for (size_t i = 0; i < links_.size(); ++i)
    if (!links_[i].is_down) links_[i].weight_when_up = fractions[i] * sum_up;
  return follow_weights(std::move(why));
}

std::optional<Decision> Balancer::follow_weights(std::string why) {
  std::vector<double> up;
  std::vector<double> weights;
  for (const LinkState& link : links_) {
    up.push_back(link.is_down ? 0 : 1);
    weights.push_back(up.back() * link.weight_when_up);
  }
  const auto is_zero = [](double w) { return w == 0; };
  // Only links without a share of their own are up: evenly over them. None is up: nowhere to go.
  if (std::all_of(up.begin(), up.end(), is_zero)) return std::nullopt;
  Shares next = to_shares(std::all_of(weights.begin(), weights.end(), is_zero) ? up : weights);
  if (next == shares_) return std::nullopt;
  shares_ = std::move(next);
  start_window();
  return Decision{shares_, std::move(why)};
}

std::string Balancer::times(size_t late, size_t early) const {
  const auto ns = [&](size_t i) {
    return format_ns(static_cast<int64_t>(links_[i].cost * median_call_bytes_));
  };
  return fmt::format("{} against {}", ns(late), ns(early));
}

}  // namespace braid::plan
