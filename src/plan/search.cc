#include "plan/search.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/units.h"
#include "plan/solve.h"

namespace braid::plan {

namespace {

uint32_t to_parts(double fraction) { return static_cast<uint32_t>(std::lround(fraction * kWhole)); }

}  // namespace

StepSearch::StepSearch(Shares start, std::vector<std::string> names, const SearchOptions& options)
    : shares_(std::move(start)),
      names_(std::move(names)),
      options_(options),
      step_(options.first_step),
      best_(shares_) {
  BRAID_CHECK(shares_.size() == names_.size() && !shares_.empty(), "{} shares, {} names",
              shares_.size(), names_.size());
  if (std::count_if(shares_.begin(), shares_.end(), [](uint32_t s) { return s > 0; }) == 1)
    finish("one link carries all");
}

void StepSearch::observe(std::span<const int64_t> finish_ns) {
  BRAID_CHECK(finish_ns.size() == shares_.size(), "{} times for {} links", finish_ns.size(),
              shares_.size());
  if (is_done_) return;
  ++rounds_;
  if (drop_lost(finish_ns)) return;
  const Extremes now = extremes(finish_ns);
  const int64_t worst_ns = finish_ns[now.slowest];
  remember(worst_ns);
  const auto spread = static_cast<double>(worst_ns - finish_ns[now.fastest]) /
                      static_cast<double>(std::max<int64_t>(worst_ns, 1));
  if (spread <= options_.tolerance)
    return finish(fmt::format("round {}: all links finish within {:.1f} %", rounds_, 100 * spread));
  if (rounds_ >= options_.max_rounds) return finish(fmt::format("{} rounds are enough", rounds_));
  halve_if_flipped(finish_ns);
  if (step_ < options_.min_step)
    return finish(fmt::format("round {}: the step is down to {:.2f} %", rounds_, 100 * step_));
  move(now, finish_ns);
}

StepSearch::Extremes StepSearch::extremes(std::span<const int64_t> finish_ns) const {
  Extremes now;
  for (size_t i = 0; i < shares_.size(); ++i) {
    if (shares_[i] == 0) continue;
    if (now.num_active == 0) now.slowest = now.fastest = i;
    if (finish_ns[i] > finish_ns[now.slowest]) now.slowest = i;
    if (finish_ns[i] < finish_ns[now.fastest]) now.fastest = i;
    ++now.num_active;
  }
  return now;
}

// A lost link's share goes to the others in proportion. When every link was lost there is nothing
// to search.
bool StepSearch::drop_lost(std::span<const int64_t> finish_ns) {
  std::vector<double> weights;
  std::string lost;
  for (size_t i = 0; i < shares_.size(); ++i) {
    const bool is_lost = shares_[i] > 0 && finish_ns[i] < 0;
    weights.push_back(is_lost ? 0 : shares_[i]);
    if (is_lost) lost += (lost.empty() ? "" : ", ") + names_[i];
  }
  if (lost.empty()) return false;
  if (std::all_of(weights.begin(), weights.end(), [](double w) { return w == 0; })) {
    finish("no link finished");
    return true;
  }
  shares_ = to_shares(weights);
  // The best so far used the dead link: it is not to be had any more.
  best_ = shares_;
  best_ns_ = 0;
  has_moved_ = false;
  why_ = fmt::format("round {}: {} did not finish and is left out", rounds_, lost);
  if (std::count_if(shares_.begin(), shares_.end(), [](uint32_t s) { return s > 0; }) == 1)
    finish(why_);
  return true;
}

void StepSearch::remember(int64_t worst_ns) {
  if (best_ns_ != 0 && worst_ns >= best_ns_) return;
  best_ = shares_;
  best_ns_ = worst_ns;
}

// Flipped: the link that got share is now later than the one that gave it, by more than the
// tolerance (two links that are level flip by noise alone, and a third one may still have far to
// go).
void StepSearch::halve_if_flipped(std::span<const int64_t> finish_ns) {
  if (!has_moved_ || shares_[last_from_] == 0) return;
  const auto to_ns = static_cast<double>(finish_ns[last_to_]);
  const auto from_ns = static_cast<double>(finish_ns[last_from_]);
  if (to_ns - from_ns > options_.tolerance * to_ns) step_ /= 2;
}

// With rates x/t, moving d from s to f makes them finish together when t_s (1 - d/x_s) = t_f (1 +
// d/x_f).
void StepSearch::move(const Extremes& now, std::span<const int64_t> finish_ns) {
  const double from_share = static_cast<double>(shares_[now.slowest]) / kWhole;
  const double to_share = static_cast<double>(shares_[now.fastest]) / kWhole;
  const auto from_ns = static_cast<double>(finish_ns[now.slowest]);
  const auto to_ns = static_cast<double>(finish_ns[now.fastest]);
  const double equal = (from_ns - to_ns) / (from_ns / from_share + to_ns / to_share);
  uint32_t parts = std::min(to_parts(std::min(step_, equal)), shares_[now.slowest]);
  parts = std::max<uint32_t>(parts, 1);
  const bool is_left_out = shares_[now.slowest] - parts < to_parts(options_.min_share);
  if (is_left_out) parts = shares_[now.slowest];
  shares_[now.slowest] -= parts;
  shares_[now.fastest] += parts;
  has_moved_ = true;
  last_from_ = now.slowest;
  last_to_ = now.fastest;
  why_ = fmt::format("round {}: moved {:.2f} % from {} ({}) to {} ({}){}", rounds_,
                     100.0 * parts / kWhole, names_[now.slowest], format_ns(finish_ns[now.slowest]),
                     names_[now.fastest], format_ns(finish_ns[now.fastest]),
                     is_left_out ? ", which leaves it out" : "");
}

void StepSearch::finish(std::string why) {
  is_done_ = true;
  shares_ = best_;
  why_ = std::move(why);
}

}  // namespace braid::plan
