#include "plan/decide.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"
#include "plan/rates.h"
#include "plan/solve.h"

namespace braid::plan {

namespace {

bool is_for_links(const TuningTable& table, std::span<const fabric::Link> links) {
  return std::equal(
      links.begin(), links.end(), table.links().begin(), table.links().end(),
      [](const fabric::Link& link, const std::string& name) { return link.name == name; });
}

Plan with_shares(const Request& request, Shares shares, uint32_t cell_bytes, double predicted_ns,
                 std::string why) {
  return {request, std::move(shares), cell_bytes, predicted_ns, std::move(why)};
}

// A tuned cell size that the lanes cannot carry (other slots than when it was tuned) falls back to
// the chosen one.
uint32_t cell_bytes_of(const TuningEntry* entry, const Request& request,
                       const DecideOptions& options) {
  const uint32_t chosen = choose_cell_bytes(block_bytes(request), options.max_piece_bytes);
  if (entry == nullptr || entry->cell_bytes == 0 || entry->cell_bytes > options.max_piece_bytes)
    return chosen;
  return entry->cell_bytes;
}

Plan from_entry(const Request& request, const TuningEntry& entry, const DecideOptions& options) {
  const uint32_t cell = cell_bytes_of(&entry, request, options);
  const double scale =
      static_cast<double>(request.bytes) / static_cast<double>(std::max<uint64_t>(entry.bytes, 1));
  const double gain = entry.best_single_ns / entry.measured_ns - 1;
  if (entry.best_single_ns > 0 && gain < options.min_gain)
    return with_shares(
        request, single_share(entry.shares.size(), static_cast<size_t>(entry.best_link)), cell,
        entry.best_single_ns * scale,
        fmt::format(
            "measured at {}: others beside the best link gain {:.1f} %, and must gain {:.1f} %: it "
            "carries all",
            format_bytes(entry.bytes), 100 * gain, 100 * options.min_gain));
  std::string why = fmt::format("tuned at {}: {}", format_bytes(entry.bytes),
                                format_ns(static_cast<int64_t>(entry.measured_ns)));
  if (entry.best_single_ns > 0)
    why += fmt::format(", {:.1f} % faster than the best link alone ({})", 100 * gain,
                       format_ns(static_cast<int64_t>(entry.best_single_ns)));
  return with_shares(request, entry.shares, cell, entry.measured_ns * scale, std::move(why));
}

// A part must be worth one cell of every block; less cannot be cut.
double min_part_bytes(const Request& request, uint32_t cell_bytes) {
  const double blocks =
      static_cast<double>(request.bytes) / static_cast<double>(block_bytes(request));
  return blocks * cell_bytes;
}

Plan solved(const Request& request, std::span<const fabric::Link> links, const RateTable* rates,
            const DecideOptions& options) {
  const uint32_t cell = choose_cell_bytes(block_bytes(request), options.max_piece_bytes);
  const SolveOptions solve_options{min_part_bytes(request, cell), options.min_gain};
  const std::vector<LinkCost> facts = costs_from_facts(request, links);
  std::vector<const RateCurve*> curves;
  for (size_t i = 0; i < links.size(); ++i)
    curves.push_back(rates == nullptr ? nullptr : rates->curve(request.op, request.num_ranks, i));
  const bool is_measured =
      std::any_of(curves.begin(), curves.end(), [](const RateCurve* c) { return c != nullptr; });
  const Split split =
      solve_measured(static_cast<double>(request.bytes), facts, curves, solve_options);
  return with_shares(request, split.shares, cell, split.predicted_ns,
                     (is_measured ? "by measured rates, " : "by the links' facts, ") + split.why);
}

// By the curves that solve() goes by.
std::vector<double> alone_ns(const Request& request, std::span<const fabric::Link> links,
                             const RateTable& rates) {
  const std::vector<LinkCost> facts = costs_from_facts(request, links);
  std::vector<double> found(links.size());
  for (size_t i = 0; i < links.size(); ++i)
    if (const RateCurve* curve = rates.curve(request.op, request.num_ranks, i))
      found[i] = curve->time_ns(static_cast<double>(request.bytes), facts[i].latency_ns);
  return found;
}

}  // namespace

Plan decide(const Request& request, std::span<const fabric::Link> links, const TuningTable& table,
            const DecideOptions& options) {
  BRAID_CHECK(!links.empty(), "no links to plan over");
  const uint32_t cell = choose_cell_bytes(block_bytes(request), options.max_piece_bytes);
  if (request.num_ranks <= 1 || request.bytes == 0)
    return with_shares(request, single_share(links.size(), 0), cell, 0,
                       "nothing moves between ranks");
  if (links.size() == 1) {
    Plan plan = solved(request, links, nullptr, options);
    plan.why = "there is one link";
    return plan;
  }
  const bool is_usable = is_for_links(table, links);
  const TuningEntry* entry =
      is_usable ? table.find(request.op, request.num_ranks, size_class(request.bytes)) : nullptr;
  Plan plan = entry != nullptr
                  ? from_entry(request, *entry, options)
                  : solved(request, links, is_usable ? &table.rates() : nullptr, options);
  if (is_usable) plan.alone_ns = alone_ns(request, links, table.rates());
  return plan;
}

}  // namespace braid::plan
