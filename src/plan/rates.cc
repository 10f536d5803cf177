#include "plan/rates.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace braid::plan {

namespace {

// Flattest slope (in log-log) a tangent may have: a curve that is flat within noise must not claim
// an infinite rate.
constexpr double kMinSlope = 0.02;
// Newton converges in three or four rounds on smooth curves; the rest is for kinks, where from
// round kDampFrom on each round goes half the way only.
constexpr int kRounds = 16;
constexpr int kDampFrom = 6;

struct Line {
  double latency_ns;
  double ns_per_byte;
};

// From (0, latency) to the point; a latency above the point's own time is cut to it.
Line line_to(const RatePoint& point, double ns, double latency_ns) {
  const double start = std::clamp(latency_ns, 0.0, ns);
  return {start, (ns - start) / static_cast<double>(point.bytes)};
}

// Below the first point and above the last one the curve is a line; between them `segment` is the
// upper point's index.
bool is_outside(std::span<const RatePoint> points, double bytes, size_t& segment) {
  const auto upper = std::upper_bound(
      points.begin(), points.end(), bytes,
      [](double b, const RatePoint& p) { return b < static_cast<double>(p.bytes); });
  segment = static_cast<size_t>(upper - points.begin());
  return upper == points.begin() || upper == points.end();
}

struct PowerLaw {  // ns = at_ns * (bytes / at_bytes) ^ slope
  double at_bytes;
  double at_ns;
  double slope;
  double ns(double bytes) const { return at_ns * std::pow(bytes / at_bytes, slope); }
};

PowerLaw between(const RatePoint& low, double low_ns, const RatePoint& high, double high_ns) {
  const auto low_bytes = static_cast<double>(low.bytes);
  return {low_bytes, low_ns,
          std::log(high_ns / low_ns) / std::log(static_cast<double>(high.bytes) / low_bytes)};
}

LinkCost with_line(LinkCost facts, const RateCurve* curve, double bytes) {
  if (curve == nullptr || curve->empty()) return facts;
  const LinkCost line = curve->tangent(bytes, facts.latency_ns);
  facts.latency_ns = line.latency_ns;
  facts.algbw_gbps = line.algbw_gbps;
  return facts;
}

double part_ns(double bytes, const LinkCost& facts, const RateCurve* curve) {
  if (curve != nullptr && !curve->empty()) return curve->time_ns(bytes, facts.latency_ns);
  return facts.latency_ns + bytes / facts.algbw_gbps;
}

bool is_known(const LinkCost& facts, const RateCurve* curve) {
  return (curve != nullptr && !curve->empty()) ||
         (std::isfinite(facts.algbw_gbps) && facts.algbw_gbps > 0);
}

// When the last link of `parts` would really finish, by the curves instead of their tangents.
double real_finish_ns(const Parts& parts, std::span<const LinkCost> facts,
                      std::span<const RateCurve* const> curves) {
  double worst = 0;
  for (size_t i = 0; i < facts.size(); ++i)
    if (parts.bytes[i] > 0)
      worst = std::max(worst, part_ns(parts.bytes[i] / parts.speed[i], facts[i], curves[i]));
  return worst;
}

Parts newton(double bytes, std::span<const LinkCost> facts,
             std::span<const RateCurve* const> curves, const SolveOptions& options) {
  std::vector<double> at(facts.size(), bytes / static_cast<double>(facts.size()));
  Parts best;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<LinkCost> lines;
    for (size_t i = 0; i < facts.size(); ++i)
      lines.push_back(with_line(facts[i], curves[i], std::max(at[i], options.min_part_bytes)));
    Parts parts = equal_finish(bytes, lines, options.min_part_bytes);
    for (size_t i = 0; i < facts.size(); ++i)
      at[i] = round < kDampFrom ? parts.bytes[i] : (at[i] + parts.bytes[i]) / 2;
    parts.finish_ns = real_finish_ns(parts, facts, curves);
    if (round == 0 || parts.finish_ns < best.finish_ns) best = std::move(parts);
  }
  return best;
}

}  // namespace

bool RateCurve::add(RatePoint point) {
  if (point.bytes == 0 || !std::isfinite(point.ns) || point.ns <= 0) return false;
  const auto at =
      std::lower_bound(points_.begin(), points_.end(), point,
                       [](const RatePoint& a, const RatePoint& b) { return a.bytes < b.bytes; });
  if (at != points_.end() && at->bytes == point.bytes) {
    *at = point;
  } else {
    points_.insert(at, point);
  }
  rebuild();
  return true;
}

std::vector<RatePoint> RateCurve::slower_below(const RatePoint& point) const {
  std::vector<RatePoint> found;
  for (const RatePoint& each : points_)
    if (each.bytes < point.bytes && each.ns > point.ns) found.push_back(each);
  return found;
}

void RateCurve::rebuild() {
  monotone_ns_.clear();
  double most = 0;
  for (const RatePoint& point : points_) monotone_ns_.push_back(most = std::max(most, point.ns));
}

double RateCurve::time_ns(double bytes, double latency_ns) const {
  BRAID_CHECK(!empty(), "time of {} bytes asked from a curve without points", bytes);
  size_t i = 0;
  if (is_outside(points_, bytes, i)) {
    const size_t end = i == 0 ? 0 : points_.size() - 1;
    const Line line = line_to(points_[end], ns_at(end), latency_ns);
    return line.latency_ns + line.ns_per_byte * std::max(0.0, bytes);
  }
  return between(points_[i - 1], ns_at(i - 1), points_[i], ns_at(i)).ns(bytes);
}

LinkCost RateCurve::tangent(double bytes, double latency_ns) const {
  BRAID_CHECK(!empty(), "tangent at {} bytes asked from a curve without points", bytes);
  size_t i = 0;
  LinkCost cost;
  if (is_outside(points_, bytes, i)) {
    const size_t end = i == 0 ? 0 : points_.size() - 1;
    const Line line = line_to(points_[end], ns_at(end), latency_ns);
    const double floor = kMinSlope * ns_at(end) / static_cast<double>(points_[end].bytes);
    cost.latency_ns = line.latency_ns;
    cost.algbw_gbps = 1 / std::max(line.ns_per_byte, floor);
    return cost;
  }
  const PowerLaw law = between(points_[i - 1], ns_at(i - 1), points_[i], ns_at(i));
  const double slope = std::max(law.slope, kMinSlope);
  const double ns = law.ns(bytes);
  cost.latency_ns = ns * (1 - slope);
  cost.algbw_gbps = bytes / (slope * ns);
  return cost;
}

bool RateTable::add(Op op, int num_ranks, size_t link, RatePoint point) {
  std::vector<RateCurve>& links = curves_[{op, num_ranks}];
  if (links.size() <= link) links.resize(link + 1);
  return links[link].add(point);
}

const RateCurve* RateTable::curve(Op op, int num_ranks, size_t link) const {
  const auto found = curves_.find({op, num_ranks});
  if (found == curves_.end() || link >= found->second.size() || found->second[link].empty())
    return nullptr;
  return &found->second[link];
}

Split solve_measured(double bytes, std::span<const LinkCost> facts,
                     std::span<const RateCurve* const> curves, const SolveOptions& options) {
  BRAID_CHECK(facts.size() == curves.size(), "{} links, {} curves", facts.size(), curves.size());
  int best = -1;
  double best_ns = 0;
  for (size_t i = 0; i < facts.size(); ++i) {
    if (!is_known(facts[i], curves[i])) continue;
    const double ns = part_ns(bytes, facts[i], curves[i]);
    if (best < 0 || ns < best_ns) {
      best = static_cast<int>(i);
      best_ns = ns;
    }
  }
  if (best < 0) return solve(bytes, facts, options);
  return choose_split(newton(bytes, facts, curves, options), best, best_ns, options.min_gain);
}

}  // namespace braid::plan
