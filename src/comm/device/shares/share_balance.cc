#include "comm/device/shares/share_balance.h"

#include <algorithm>

#include "base/units.h"

namespace braid::comm {

namespace {

constexpr size_t kBase = 0, kBeside = 1;  // the balancer's links
// Of samples whose times are not all there. The rings of samples.h keep twice as many.
constexpr size_t kMostSampled = Samples::kKept / 2;

plan::Shares shares_of(uint32_t beside_parts) {
  return {plan::kWhole - beside_parts, beside_parts};
}

template <typename Part, typename Pages>
std::vector<Part*> parts_of(const std::vector<Pages*>& pages, Part Pages::* part) {
  std::vector<Part*> all;
  all.reserve(pages.size());
  for (Pages* of_rank : pages) all.push_back(&(of_rank->*part));
  return all;
}

}  // namespace

Result<std::unique_ptr<ShareBalance>> ShareBalance::create(group::Group& group,
                                                           const Config& config, sys::Cuda& cuda,
                                                           const BalancedLink& link,
                                                           Deadline deadline) {
  const bool is_on = config.flag("BRAID_BALANCE") && config.integer("BRAID_GPU_SAMPLE") > 0;
  Result<Stopwatch> stopwatch = Stopwatch::create(cuda);
  transport::SegmentRequest request;
  request.topic = "gpu balance";
  request.bytes = sizeof(Pages);
  request.shape =
      fmt::format("on:{},sample:{},window:{}", is_on, config.integer("BRAID_GPU_SAMPLE"),
                  config.integer("BRAID_BALANCE_WINDOW"));
  request.host_id = config.text("BRAID_HOST_ID");
  request.refusal = stopwatch.status();
  BRAID_ASSIGN_OR_RETURN(transport::Segments segments,
                         transport::share_segments(group, request, deadline));
  if (!is_on) return std::unique_ptr<ShareBalance>();
  return std::unique_ptr<ShareBalance>(
      new ShareBalance(group, config, link, std::move(stopwatch).value(), std::move(segments)));
}

ShareBalance::ShareBalance(group::Group& group, const Config& config, const BalancedLink& link,
                           Stopwatch stopwatch, transport::Segments segments)
    : group_(group),
      table_(link.shares),
      names_{link.base_name, link.name},
      timeout_ns_(config.duration_ns("BRAID_TIMEOUT")),
      window_calls_(static_cast<int>(std::max<int64_t>(1, config.integer("BRAID_BALANCE_WINDOW")))),
      sample_every_(static_cast<uint64_t>(config.integer("BRAID_GPU_SAMPLE"))),
      segments_(std::move(segments)),
      epoch_log_(group.rank(), parts_of(pages(), &Pages::epoch_log)),
      samples_(group.rank(), parts_of(pages(), &Pages::samples)),
      stopwatch_(std::move(stopwatch)) {}

// A segment is all zeros at first, and that is what all of it begins with.
std::vector<ShareBalance::Pages*> ShareBalance::pages() const {
  std::vector<Pages*> all;
  all.reserve(static_cast<size_t>(segments_.size()));
  for (int r = 0; r < segments_.size(); ++r)
    all.push_back(reinterpret_cast<Pages*>(segments_.of(r)));
  return all;
}

// ---- one call, the same on all ranks ----

Status ShareBalance::begin_call(const BalancedCall& call) {
  end_call();  // of one that failed on its way
  const ShareKey key = share_key(call.op, call.bytes);
  if (call.is_captured || !table_.can_move(key)) return {};
  const uint64_t number = num_calls_.fetch_add(1, std::memory_order_relaxed) + 1;
  BRAID_RETURN_IF_ERROR(publish_readings());
  if (group_.rank() == 0) decide();
  BRAID_ASSIGN_OR_RETURN(
      const uint32_t bits,
      epoch_log_.settle(number, Deadline::after_ns(timeout_ns_), [this] { return group_.fate(); }));
  if (const auto change = unpack(bits)) apply(*change);
  sample(call);
  return {};
}

void ShareBalance::end_call() {
  stopwatch_.stop();
  table_.set_trial(std::nullopt);
}

void ShareBalance::apply(const ShareChange& change) {
  if (change.is_trial) {
    keys_[change.key].trial_parts = change.parts;
    num_trials_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  table_.move(change.key, change.parts);
  num_moves_.fetch_add(1, std::memory_order_relaxed);
}

void ShareBalance::sample(const BalancedCall& call) {
  const ShareKey key = share_key(call.op, call.bytes);
  KeyState& state = keys_[key];
  const auto trial = std::exchange(state.trial_parts, std::nullopt);
  if (trial) table_.set_trial(key, *trial);
  if (state.calls++ % sample_every_ != 0 && !trial) return;
  const uint64_t number = num_samples_.fetch_add(1, std::memory_order_relaxed) + 1;
  stopwatch_.begin(number);
  if (group_.rank() != 0) return;
  const uint64_t beside_bytes =
      part_bytes(call.bytes, table_.parts(call.op, call.bytes), call.most_bytes, call.used);
  sampled_.push_back({number, num_calls_.load(std::memory_order_relaxed), key,
                      call.bytes * call.num_segments, call.most_bytes,
                      beside_bytes * call.num_segments, trial ? *trial : table_.class_parts(key),
                      trial.has_value()});
  if (sampled_.size() > kMostSampled) sampled_.pop_front();
}

// ---- facts ----

Status ShareBalance::publish_readings() {
  for (;;) {
    BRAID_ASSIGN_OR_RETURN(const auto reading, stopwatch_.take());
    if (!reading) return {};
    samples_.publish(reading->number, reading->times);
  }
}

// ---- decisions, on rank 0 ----

// A rank may have had no events left for a sample: later ones are not kept waiting for it.
void ShareBalance::decide() {
  for (auto it = sampled_.begin(); it != sampled_.end();) {
    const auto latest = samples_.of_all(it->number);
    if (!latest) {
      ++it;
      continue;
    }
    const Sampled sampled = *it;
    it = sampled_.erase(it);
    judge(sampled, *latest);
  }
}

void ShareBalance::judge(const Sampled& sampled, const CallTimes& latest) {
  Decider& decider = decider_of(sampled);
  std::array<plan::LinkSample, 2> links;
  links[kBase] = {sampled.bytes - sampled.beside_bytes, latest.base_ns};
  links[kBeside] = {sampled.beside_bytes, latest.beside_ns};
  const int windows_before = decider.balancer.windows();
  const auto decision = decider.balancer.observe(shares_of(sampled.class_parts), links);
  std::atomic_ref(pages()[0]->windows)
      .fetch_add(static_cast<uint64_t>(decider.balancer.windows() - windows_before),
                 std::memory_order_relaxed);
  if (!decision) return;
  const ShareChange change{sampled.key, decision->shares[kBeside], decision->is_trial};
  const uint64_t from_call =
      epoch_log_.propose(pack(change), num_calls_.load(std::memory_order_relaxed));
  if (from_call == 0) return;  // another rank is thousands of calls behind
  decider.holds_from = from_call;
  log_.push_back(fmt::format("gpu call {}: {} up to {}: {}", from_call,
                             plan::op_name(sampled.key.op),
                             format_bytes(most_bytes_of(sampled.key.size_class)), decision->why));
}

// Begins anew where its shares are not those in force: another tuning, or no room for its change.
ShareBalance::Decider& ShareBalance::decider_of(const Sampled& sampled) {
  const plan::Shares in_force = shares_of(sampled.class_parts);
  const auto found = deciders_.find(sampled.key);
  if (found != deciders_.end()) {
    const bool is_followed = sampled.is_trial || sampled.call < found->second.holds_from ||
                             found->second.balancer.shares() == in_force;
    if (is_followed) return found->second;
    deciders_.erase(found);
  }
  plan::Balancer balancer(sampled.is_trial ? shares_of(0) : in_force, names_, options_for(sampled));
  return deciders_.emplace(sampled.key, Decider{std::move(balancer)}).first->second;
}

// Never more than tuning found, which looked at whole calls: where links disturb each other, times
// at which each is done say that more would be better, and calls take longer (all_to_all of 256 MiB
// raised from 5 to 6 %: from 366 to 380 us, 2 H200).
plan::BalanceOptions ShareBalance::options_for(const Sampled& sampled) const {
  plan::BalanceOptions options = plan::options_for_enqueued_calls();
  options.window_calls = window_calls_;
  const uint64_t class_bytes = most_bytes_of(sampled.key.size_class);
  const double most = static_cast<double>(sampled.most_bytes) / static_cast<double>(class_bytes);
  options.most = {1, std::min(most, table_.tuned(sampled.key.op).at(class_bytes))};
  return options;
}

ShareBalance::Summary ShareBalance::summary() const {
  Summary all;
  all.calls = num_calls_.load(std::memory_order_relaxed);
  all.samples = num_samples_.load(std::memory_order_relaxed);
  all.moves = num_moves_.load(std::memory_order_relaxed);
  all.trials = num_trials_.load(std::memory_order_relaxed);
  all.windows = std::atomic_ref(pages()[0]->windows).load(std::memory_order_relaxed);
  all.moved = table_.moved();
  return all;
}

}  // namespace braid::comm
