#include "plan/solve.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/check.h"
#include "base/units.h"
#include "plan/wire.h"

namespace braid::plan {

namespace {

bool is_usable(const LinkCost& link) {
  return std::isfinite(link.algbw_gbps) && link.algbw_gbps > 0;
}

double alone_ns(double bytes, const LinkCost& link) {
  return link.latency_ns + bytes / link.algbw_gbps;
}

// The links of one resource in the order in which they get it: most request bytes per load first.
std::vector<size_t> by_worth(std::span<const LinkCost> links) {
  std::vector<size_t> order(links.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return links[a].algbw_gbps * links[b].load > links[b].algbw_gbps * links[a].load;
  });
  return order;
}

// The part of its own rate that each active link has beside the other active ones; 0 for the rest.
std::vector<double> fill_resources(std::span<const LinkCost> links,
                                   const std::vector<bool>& is_active,
                                   std::span<const size_t> order) {
  std::vector<double> speed(links.size(), 0);
  std::map<int, double> left;  // of each resource
  for (const size_t i : order) {
    if (!is_active[i]) continue;
    speed[i] = 1;
    if (links[i].resource < 0) continue;
    double& free = left.try_emplace(links[i].resource, 1.0).first->second;
    speed[i] = std::min(1.0, free / links[i].load);
    free = std::max(0.0, free - speed[i] * links[i].load);
  }
  return speed;
}

// The closed form; parts of links with a latency above the finish come out negative.
Parts solve_linear(double bytes, std::span<const LinkCost> links, std::vector<double> speed) {
  double sum_rate = 0;
  double sum_started = 0;  // bytes that would have moved during the latencies
  for (size_t i = 0; i < links.size(); ++i) {
    if (speed[i] == 0) continue;
    sum_rate += links[i].algbw_gbps * speed[i];
    sum_started += links[i].latency_ns * links[i].algbw_gbps * speed[i];
  }
  Parts parts;
  parts.finish_ns = (bytes + sum_started) / sum_rate;
  for (size_t i = 0; i < links.size(); ++i)
    parts.bytes.push_back(speed[i] == 0 ? 0
                                        : links[i].algbw_gbps * speed[i] *
                                              (parts.finish_ns - links[i].latency_ns));
  parts.speed = std::move(speed);
  return parts;
}

int fastest_alone(double bytes, std::span<const LinkCost> links) {
  int best = -1;
  for (size_t i = 0; i < links.size(); ++i)
    if (is_usable(links[i]) &&
        (best < 0 || alone_ns(bytes, links[i]) < alone_ns(bytes, links[static_cast<size_t>(best)])))
      best = static_cast<int>(i);
  return best;
}

Split alone(size_t num_links, int link, double ns, std::string why) {
  Split split;
  split.shares = single_share(num_links, static_cast<size_t>(link));
  split.predicted_ns = ns;
  split.best_link = link;
  split.best_ns = ns;
  split.why = std::move(why);
  return split;
}

}  // namespace

// Drops the smallest part until all active links carry enough. The last link always stays.
Parts equal_finish(double bytes, std::span<const LinkCost> links, double min_part_bytes) {
  std::vector<bool> is_active;
  for (const LinkCost& link : links) is_active.push_back(is_usable(link));
  const std::vector<size_t> order = by_worth(links);
  auto num_active = std::count(is_active.begin(), is_active.end(), true);
  BRAID_CHECK(num_active > 0, "none of {} links has a rate", links.size());
  for (;; --num_active) {
    Parts parts = solve_linear(bytes, links, fill_resources(links, is_active, order));
    size_t smallest = links.size();
    for (size_t i = 0; i < links.size(); ++i)
      if (is_active[i] && (smallest == links.size() || parts.bytes[i] < parts.bytes[smallest]))
        smallest = i;
    if (num_active == 1 || parts.bytes[smallest] >= min_part_bytes) return parts;
    is_active[smallest] = false;
  }
}

bool Split::is_single() const { return std::count(shares.begin(), shares.end(), kWhole) == 1; }

Shares single_share(size_t num_links, size_t link) {
  BRAID_CHECK(link < num_links, "link {} of {}", link, num_links);
  Shares shares(num_links, 0);
  shares[link] = kWhole;
  return shares;
}

Shares to_shares(std::span<const double> weights) {
  BRAID_CHECK(!weights.empty(), "no weights");
  std::vector<double> clean;
  for (const double w : weights) clean.push_back(std::isfinite(w) && w > 0 ? w : 0);
  // Scaled by the largest before summing, so that huge finite weights cannot overflow.
  const double largest = *std::max_element(clean.begin(), clean.end());
  if (largest == 0) return single_share(weights.size(), 0);
  double sum = 0;
  for (double& w : clean) sum += w /= largest;
  Shares shares;
  std::vector<double> remainders;
  uint32_t left = kWhole;
  for (const double w : clean) {
    const double exact = w / sum * kWhole;
    shares.push_back(std::min(left, static_cast<uint32_t>(exact)));
    remainders.push_back(exact - shares.back());
    left -= shares.back();
  }
  for (; left > 0; --left) {
    const auto most = std::max_element(remainders.begin(), remainders.end());
    shares[static_cast<size_t>(most - remainders.begin())] += 1;
    *most -= 1;
  }
  return shares;
}

Split choose_split(const Parts& parts, int best_link, double best_ns, double min_gain) {
  const double gain = best_ns / parts.finish_ns - 1;
  const size_t num_links = parts.bytes.size();
  // Not `gain < min_gain`: a NaN (0 bytes at 0 latency) must end up here too.
  if (!(gain >= min_gain)) {
    const double shown = std::isfinite(gain) ? std::max(0.0, 100 * gain) : 0.0;
    return alone(num_links, best_link, best_ns,
                 fmt::format("others beside the best link would gain {:.1f} %, and must gain "
                             "{:.1f} %: it carries all",
                             shown, 100 * min_gain));
  }
  Split split =
      alone(num_links, best_link, best_ns,
            fmt::format(
                "all links finish together after {}, {:.1f} % faster than the best one alone ({})",
                format_ns(static_cast<int64_t>(parts.finish_ns)), 100 * gain,
                format_ns(static_cast<int64_t>(best_ns))));
  split.shares = to_shares(parts.bytes);
  split.predicted_ns = parts.finish_ns;
  return split;
}

Split solve(double bytes, std::span<const LinkCost> links, const SolveOptions& options) {
  BRAID_CHECK(!links.empty(), "no links to split over");
  const int best = fastest_alone(bytes, links);
  if (best < 0)
    return alone(links.size(), 0, 0, "no link has a known rate: the first one carries all");
  const double best_ns = alone_ns(bytes, links[static_cast<size_t>(best)]);
  return choose_split(equal_finish(bytes, links, options.min_part_bytes), best, best_ns,
                      options.min_gain);
}

double break_even_bytes(const LinkCost& fast, const LinkCost& slow) noexcept {
  return std::max(0.0, fast.algbw_gbps * (slow.latency_ns - fast.latency_ns));
}

std::vector<LinkCost> costs_from_facts(const Request& request,
                                       std::span<const fabric::Link> links) {
  std::map<std::string, int> resources;
  std::map<std::string, double> capacity;
  for (const fabric::Link& link : links) {
    if (link.shares_with.empty()) continue;
    resources.try_emplace(link.shares_with, static_cast<int>(resources.size()));
    double& gbps = capacity[link.shares_with];
    gbps = std::max({gbps, link.rate_gbps, link.resource_gbps});
  }
  std::vector<LinkCost> costs;
  for (const fabric::Link& link : links) {
    LinkCost cost;
    cost.latency_ns = static_cast<double>(link.latency_ns);
    cost.algbw_gbps = algbw_gbps(request, link);
    if (!link.shares_with.empty() && link.rate_gbps > 0) {
      cost.resource = resources.at(link.shares_with);
      cost.load = link.rate_gbps / capacity.at(link.shares_with);
    }
    costs.push_back(cost);
  }
  return costs;
}

}  // namespace braid::plan
