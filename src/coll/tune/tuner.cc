#include "coll/tune/tuner.h"

#include <algorithm>

#include "base/clock.h"
#include "base/units.h"
#include "plan/decide.h"
#include "plan/search.h"
#include "plan/solve.h"

namespace braid::coll {

namespace {

// A link alone: small enough to see its latency, large enough to see its rate.
constexpr uint64_t kAloneSizes[] = {256_KiB, 4_MiB};
// Classes that are refined together; decide() solves the ones between from the rates. Up to 32 MiB
// a call of a paced experiment takes tens of milliseconds; larger messages differ from it by less
// than the tolerance of the search.
constexpr uint64_t kRefinedSizes[] = {1_MiB, 4_MiB, 32_MiB};
// Of a call as short as a time slice one in two may be preempted on a busy machine; of a long one
// the slices are a small part.
constexpr double kShortNs = 5e6;
constexpr int kRepeats = 3, kShortRepeats = 7;
constexpr int kMaxRounds = 10;
constexpr int kSteps = plan::kNumOps * 5;

int repeats_for(double call_ns) { return call_ns < kShortNs ? kShortRepeats : kRepeats; }

std::string in_percent(const plan::Shares& shares) {
  std::string text;
  for (uint32_t share : shares)
    text += fmt::format("{}{:.1f}", text.empty() ? "" : " / ", 100.0 * share / plan::kWhole);
  return text + " %";
}

}  // namespace

Tuner::Tuner(comm::Comm& comm, std::string fabric_hash, int64_t budget_ns,
             const TuneProgress& progress)
    : comm_(comm),
      budget_ns_(budget_ns),
      progress_(progress),
      start_ns_(now_ns()),
      workload_(comm, kRefinedSizes[std::size(kRefinedSizes) - 1]) {
  for (const fabric::Link& link : comm.links()) names_.push_back(link.name);
  table_ = plan::TuningTable(std::move(fabric_hash), names_);
}

void Tuner::show(const std::string& what) {
  if (progress_ && comm_.rank() == 0)
    progress_(std::min(1.0, static_cast<double>(steps_done_) / kSteps), what);
}

bool Tuner::is_affordable(double call_ns, int calls) const {
  return call_ns * calls < static_cast<double>(budget_ns_ - elapsed_ns_);
}

// The largest size up to `wanted` whose call should take under a twentieth of the budget on the
// slowest link.
uint64_t Tuner::affordable_bytes(plan::Op op, uint64_t wanted_bytes) const {
  double slowest = 1e9;
  for (const fabric::Link& link : comm_.links()) slowest = std::min(slowest, link.rate_gbps);
  uint64_t bytes = wanted_bytes;
  const double factor = op == plan::Op::kAllReduce ? 2 : 1;
  while (bytes > 64_KiB &&
         factor * static_cast<double>(bytes) / slowest > static_cast<double>(budget_ns_) / 40)
    bytes /= 2;
  return bytes;
}

Status Tuner::measure_alone(plan::Op op, uint64_t bytes) {
  show(fmt::format("{} of {}: each link alone", plan::op_name(op), format_bytes(bytes)));
  for (size_t link = 0; link < names_.size(); ++link) {
    const double expected_ns = static_cast<double>(bytes) / comm_.links()[link].rate_gbps;
    BRAID_ASSIGN_OR_RETURN(
        const Round round,
        workload_.measure(op, bytes, plan::single_share(names_.size(), link),
                          expected_ns < kShortNs ? kShortRepeats : 2, true, start_ns_));
    elapsed_ns_ = round.elapsed_ns;
    BRAID_RETURN_IF_ERROR(note_alone(op, bytes, link, round.duration_ns));
  }
  ++steps_done_;
  return {};
}

// Keeps a point of a link alone. Smaller messages cannot take longer: of those that did, other work
// was measured. They are measured again, once, and the shorter time holds.
Status Tuner::note_alone(plan::Op op, uint64_t bytes, size_t link, int64_t duration_ns) {
  plan::RateTable& rates = table_.rates();
  const auto ns = static_cast<double>(duration_ns);
  if (!rates.add(op, comm_.size(), link, {bytes, ns})) return {};
  for (plan::RatePoint point : rates.curve(op, comm_.size(), link)->slower_below({bytes, ns})) {
    if (is_late()) break;
    BRAID_ASSIGN_OR_RETURN(
        const Round again,
        workload_.measure(op, point.bytes, plan::single_share(names_.size(), link), repeats_for(ns),
                          true, start_ns_));
    elapsed_ns_ = again.elapsed_ns;
    log_.push_back(fmt::format("{} of {} over {} took {}, longer than {}: measured again, {}",
                               plan::op_name(op), format_bytes(point.bytes), names_[link],
                               format_ns(static_cast<int64_t>(point.ns)), format_bytes(bytes),
                               format_ns(again.duration_ns)));
    point.ns = std::min(point.ns, static_cast<double>(again.duration_ns));
    (void)rates.add(op, comm_.size(), link, point);
  }
  return {};
}

Result<Tuner::Single> Tuner::best_alone(plan::Op op, uint64_t bytes) {
  const plan::RateTable& rates = table_.rates();
  Single best;
  double best_ns = 0;
  for (size_t link = 0; link < names_.size(); ++link) {
    const plan::RateCurve* curve = rates.curve(op, comm_.size(), link);
    if (curve == nullptr || curve->empty()) continue;
    const double ns = curve->time_ns(static_cast<double>(bytes), 0);
    if (best_ns == 0 || ns < best_ns) {
      best_ns = ns;
      best.link = link;
    }
  }
  BRAID_ASSIGN_OR_RETURN(const Round round,
                         workload_.measure(op, bytes, plan::single_share(names_.size(), best.link),
                                           repeats_for(best_ns), true, start_ns_));
  elapsed_ns_ = round.elapsed_ns;
  best.duration_ns = round.duration_ns;
  BRAID_RETURN_IF_ERROR(note_alone(op, bytes, best.link, best.duration_ns));
  return best;
}

Status Tuner::refine(plan::Op op, uint64_t bytes) {
  const plan::Plan start = plan::decide({op, bytes, comm_.size()}, comm_.links(), table_);
  show(fmt::format("{} of {}: all links, from {}", plan::op_name(op), format_bytes(bytes),
                   in_percent(start.shares)));
  ++steps_done_;
  const int repeats = repeats_for(start.predicted_ns);
  if (!is_affordable(start.predicted_ns * 1.2, 2 * repeats)) {
    note_cut_off();
    return {};
  }
  BRAID_ASSIGN_OR_RETURN(const Single single, best_alone(op, bytes));
  plan::StepSearch search(start.shares, names_);
  // A round that starts from one link alone has nothing to move: the closed form says that more
  // links do not pay.
  for (int round = 0; !search.done() && round < kMaxRounds && !is_late(); ++round) {
    BRAID_ASSIGN_OR_RETURN(const Round seen, workload_.measure(op, bytes, search.shares(), repeats,
                                                               round == 0, start_ns_));
    elapsed_ns_ = seen.elapsed_ns;
    search.observe(seen.finish_ns);
  }
  if (search.best_ns() == 0) return {};
  plan::TuningEntry entry;
  entry.op = op;
  entry.num_ranks = comm_.size();
  entry.bytes = bytes;
  entry.shares = search.best();
  entry.measured_ns = static_cast<double>(search.best_ns());
  entry.best_link = static_cast<int>(single.link);
  entry.best_single_ns = static_cast<double>(single.duration_ns);
  log_.push_back(fmt::format("tuned {} of {} in {} rounds: {} -> {}, {} against {} on {} alone; {}",
                             plan::op_name(op), format_bytes(bytes), search.rounds(),
                             in_percent(start.shares), in_percent(entry.shares),
                             format_ns(search.best_ns()), format_ns(single.duration_ns),
                             names_[single.link], search.why()));
  table_.put(std::move(entry));
  return {};
}

Result<plan::TuningTable> Tuner::run() {
  for (const uint64_t wanted : kAloneSizes)
    for (const plan::Op op : plan::kAllOps)
      if (!is_late()) BRAID_RETURN_IF_ERROR(measure_alone(op, affordable_bytes(op, wanted)));
  for (const uint64_t wanted : kRefinedSizes)
    for (const plan::Op op : plan::kAllOps)
      if (!is_late()) BRAID_RETURN_IF_ERROR(refine(op, affordable_bytes(op, wanted)));
  if (is_late()) note_cut_off();
  steps_done_ = kSteps;
  show(fmt::format("done in {}", format_ns(elapsed_ns_)));
  return table_;
}

}  // namespace braid::coll
