#include "comm/balance.h"

#include <algorithm>

#include "base/units.h"

namespace braid::comm {

namespace {

// Tuning ends with messages of some MiB; a size class that it did not reach starts a few percent
// off.
constexpr int kOpeningWindows = 4;

}  // namespace

void RunTimeBalance::configure(bool enabled, int window_calls, std::vector<fabric::Link> links,
                               int num_ranks) {
  enabled_ = enabled;
  window_calls_ = window_calls;
  links_ = std::move(links);
  num_ranks_ = num_ranks;
  up_mask_ = ~uint64_t{0};
  reset();
}

void RunTimeBalance::reset() {
  balancers_.clear();
  updates_.clear();
}

plan::Balancer& RunTimeBalance::balancer_for(const plan::Plan& plan) {
  const Key key(plan.request.op, plan::size_class(plan.request.bytes));
  const auto found = balancers_.find(key);
  if (found != balancers_.end()) return found->second;
  std::vector<std::string> names;
  for (const fabric::Link& link : links_) names.push_back(link.name);
  plan::BalanceOptions options;
  options.window_calls = window_calls_;
  options.opening_windows = kOpeningWindows;
  return balancers_.emplace(key, plan::Balancer(plan.shares, std::move(names), options))
      .first->second;
}

// Links that some rank cannot use leave every plan; links that all can use again come back with the
// share they had.
void RunTimeBalance::follow_links(uint64_t up_mask) {
  if (up_mask == up_mask_) return;
  const uint64_t changed = up_mask ^ up_mask_;
  up_mask_ = up_mask;
  ShareUpdate mask_only;
  mask_only.up_mask = up_mask;
  updates_.push_back(mask_only);
  for (size_t link = 0; link < links_.size(); ++link) {
    if (((changed >> link) & 1) == 0) continue;
    const bool is_up = ((up_mask >> link) & 1) != 0;
    log_.push_back(
        fmt::format("link {} is {}", links_[link].name, is_up ? "back" : "down: share 0"));
    for (auto& [key, balancer] : balancers_) {
      const auto decision = is_up ? balancer.link_up(link) : balancer.link_down(link);
      if (decision) updates_.push_back({0, up_mask, true, key.first, key.second, decision->shares});
    }
  }
}

void RunTimeBalance::follow_shares(const Observation& seen) {
  const plan::Plan& plan = seen.report_plan;
  const auto used =
      std::count_if(plan.shares.begin(), plan.shares.end(), [](uint32_t s) { return s > 0; });
  const bool is_known =
      balancers_.count(Key(plan.request.op, plan::size_class(plan.request.bytes))) != 0;
  if (!enabled_ || frozen_ || (used < 2 && !is_known)) return;
  std::vector<plan::LinkSample> samples(links_.size());
  for (const Observation::Report& report : seen.reports) {
    if (report.links.size() != links_.size()) return;
    for (size_t i = 0; i < links_.size(); ++i) {
      samples[i].bytes += report.links[i].bytes;
      samples[i].finish_ns = std::max(samples[i].finish_ns, report.links[i].finish_ns);
    }
  }
  plan::Balancer& balancer = balancer_for(plan);
  const auto decision = balancer.observe(plan.shares, samples);
  if (!decision) return;
  const int size_class = plan::size_class(plan.request.bytes);
  updates_.push_back({0, up_mask_, true, plan.request.op, size_class, decision->shares});
  log_.push_back(fmt::format("{} up to {}: {}", plan::op_name(plan.request.op),
                             format_bytes(uint64_t{1} << std::min(size_class, 62)), decision->why));
}

void RunTimeBalance::observe(const Observation& seen) {
  follow_links(seen.up_mask);
  const bool is_whole = static_cast<int>(seen.reports.size()) == num_ranks_;
  if (is_whole && seen.report_plan.shares.size() == links_.size()) follow_shares(seen);
}

std::vector<ShareUpdate> RunTimeBalance::take_updates(uint64_t from_epoch) {
  // An entry must fit the smallest slot; the rest goes with the next call.
  constexpr size_t kMostPerEntry = 8;
  const size_t count = std::min(updates_.size(), kMostPerEntry);
  std::vector<ShareUpdate> taken(updates_.begin(),
                                 updates_.begin() + static_cast<ptrdiff_t>(count));
  updates_.erase(updates_.begin(), updates_.begin() + static_cast<ptrdiff_t>(count));
  for (ShareUpdate& update : taken) update.from_epoch = from_epoch;
  return taken;
}

std::vector<std::string> RunTimeBalance::take_log() { return std::exchange(log_, {}); }

}  // namespace braid::comm
