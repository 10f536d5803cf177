// How long a link needs for a part of a message, from measured points, and the split that follows.
//
// A RateCurve holds points (bytes -> ns) of one link for one operation and rank count. Between two
// points the time is interpolated log-log: a link's rate changes with size (pipelines fill, caches
// overflow), and one latency-rate line through all sizes is wrong at most of them. Outside the
// points, lines through the link's known latency. A noisy point never makes a larger part look
// faster: the curve is the running maximum of its points.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "plan/solve.h"

namespace braid::plan {

struct RatePoint {
  uint64_t bytes = 0;  // the part of the request that the link carried
  double ns = 0;
  friend bool operator==(const RatePoint&, const RatePoint&) = default;
};

class RateCurve {
 public:
  /// Adds a point; a second one of the same size replaces the first. Points without bytes or with a
  /// time that is not finite and above 0 are refused (false).
  bool add(RatePoint point);
  bool empty() const { return points_.empty(); }
  std::span<const RatePoint> points() const { return points_; }
  /// Points of fewer bytes that took longer than `point`, which no link does: what disturbed them is
  /// worth another measurement.
  std::vector<RatePoint> slower_below(const RatePoint& point) const;

  /// Time of a part of `bytes` >= 0; `latency_ns` is the link's latency where no point says better.
  /// Monotone in `bytes` and continuous. Aborts when empty.
  double time_ns(double bytes, double latency_ns) const;
  /// The line that touches the curve at `bytes`: latency (may be negative where the rate falls with
  /// size) and rate.
  LinkCost tangent(double bytes, double latency_ns) const;

 private:
  double ns_at(size_t i) const { return monotone_ns_[i]; }
  void rebuild();

  std::vector<RatePoint> points_;    // by bytes, as measured
  std::vector<double> monotone_ns_;  // running maximum of the times
};

/// Curves per (operation, rank count), one per link of the fabric.
class RateTable {
 public:
  using Key = std::pair<Op, int>;
  /// false when the point is refused (see RateCurve::add).
  bool add(Op op, int num_ranks, size_t link, RatePoint point);
  /// The curve, or null when nothing was measured.
  const RateCurve* curve(Op op, int num_ranks, size_t link) const;
  const std::map<Key, std::vector<RateCurve>>& curves() const { return curves_; }

 private:
  std::map<Key, std::vector<RateCurve>> curves_;
};

/// solve() for links of which some have curves (null: none, the line in `facts` counts). Newton's
/// method on the equal finish: each round replaces the curves by their tangents at the parts of the
/// round before, solves the closed form, and the best of all rounds wins, so a kinked curve costs
/// rounds and never a bad answer.
Split solve_measured(double bytes, std::span<const LinkCost> facts,
                     std::span<const RateCurve* const> curves, const SolveOptions& options = {});

}  // namespace braid::plan
