// A Plan for people and for programs. Field names of the JSON are stable: `braid plan` and
// explain() print them.
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/units.h"
#include "plan/plan.h"

namespace braid::plan {

namespace {

double percent(uint32_t share) { return 100.0 * share / kWhole; }

// Rounded to the nearest byte; doubles hold every size below 8 PiB exactly.
uint64_t part_bytes(const Plan& plan, uint32_t share) {
  return static_cast<uint64_t>(
      std::llround(static_cast<double>(plan.request.bytes) * share / kWhole));
}

std::string predicted(const Plan& plan) {
  if (!(plan.predicted_ns > 0)) return "no prediction";
  return "predicted " + format_ns(static_cast<int64_t>(plan.predicted_ns));
}

std::string link_line(const Plan& plan, const fabric::Link& link, uint32_t share) {
  const std::string shared = link.shares_with.empty() ? "" : ", shares " + link.shares_with;
  return fmt::format("  {:<16} {:5.1f} %  {:>10}  at {:.3g} GB/s, {} ({}{})\n", link.name,
                     percent(share), format_bytes(part_bytes(plan, share)), link.rate_gbps,
                     format_ns(link.latency_ns), fabric::source_name(link.source), shared);
}

}  // namespace

std::string to_words(const Plan& plan, std::span<const fabric::Link> links) {
  BRAID_CHECK(plan.shares.size() == links.size(), "{} shares for {} links", plan.shares.size(),
              links.size());
  std::string text =
      fmt::format("{} of {} on {} ranks: cells of {}, {}\n", op_name(plan.request.op),
                  format_bytes(plan.request.bytes), plan.request.num_ranks,
                  format_bytes(plan.cell_bytes), predicted(plan));
  for (size_t i = 0; i < links.size(); ++i) text += link_line(plan, links[i], plan.shares[i]);
  return text + "  because " + plan.why + "\n";
}

std::string to_json(const Plan& plan, std::span<const fabric::Link> links) {
  BRAID_CHECK(plan.shares.size() == links.size(), "{} shares for {} links", plan.shares.size(),
              links.size());
  nlohmann::ordered_json json;
  json["op"] = op_name(plan.request.op);
  json["bytes"] = plan.request.bytes;
  json["num_ranks"] = plan.request.num_ranks;
  json["size_class"] = size_class(plan.request.bytes);
  json["cell_bytes"] = plan.cell_bytes;
  json["predicted_ns"] = plan.predicted_ns;
  json["why"] = plan.why;
  json["links"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < links.size(); ++i) {
    const fabric::Link& link = links[i];
    json["links"].push_back({{"name", link.name},
                             {"kind", fabric::link_kind_name(link.kind)},
                             {"share", plan.shares[i]},
                             {"fraction", static_cast<double>(plan.shares[i]) / kWhole},
                             {"bytes", part_bytes(plan, plan.shares[i])},
                             {"rate_gbps", link.rate_gbps},
                             {"latency_ns", link.latency_ns},
                             {"can_multicast", link.can_multicast},
                             {"source", fabric::source_name(link.source)},
                             {"shares_with", link.shares_with}});
  }
  // Link names come from the machine; bytes that are not UTF-8 are replaced instead of throwing.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace braid::plan
