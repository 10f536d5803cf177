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

double alone_ns(const Plan& plan, size_t link) {
  return link < plan.alone_ns.size() ? plan.alone_ns[link] : 0;
}

// What decides: what tuning found where it measured, else the link's facts.
std::string rate_words(const Plan& plan, const fabric::Link& link, double alone) {
  if (alone <= 0)
    return fmt::format("at {:.3g} GB/s, {} ({}", link.rate_gbps, format_ns(link.latency_ns),
                       fabric::source_name(link.source));
  return fmt::format("at {:.3g} GB/s (tuned: all of it alone in {}",
                     static_cast<double>(plan.request.bytes) / alone,
                     format_ns(static_cast<int64_t>(alone)));
}

std::string link_line(const Plan& plan, const fabric::Link& link, size_t i) {
  const std::string shared =
      link.shares_with.empty() ? "" : ", shares " + link.shares_with + " with other links";
  return fmt::format("  {:<16} {:5.1f} %  {:>10}  {}{})\n", link.name, percent(plan.shares[i]),
                     format_bytes(part_bytes(plan, plan.shares[i])),
                     rate_words(plan, link, alone_ns(plan, i)), shared);
}

}  // namespace

std::string to_words(const Plan& plan, std::span<const fabric::Link> links) {
  BRAID_CHECK(plan.shares.size() == links.size(), "{} shares for {} links", plan.shares.size(),
              links.size());
  std::string text =
      fmt::format("{} of {} on {} ranks: cells of {}, {}\n", op_name(plan.request.op),
                  format_bytes(plan.request.bytes), plan.request.num_ranks,
                  format_bytes(plan.cell_bytes), predicted(plan));
  for (size_t i = 0; i < links.size(); ++i) text += link_line(plan, links[i], i);
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
                             {"alone_ns", alone_ns(plan, i)},
                             {"shares_with", link.shares_with}});
  }
  // Link names come from the machine; bytes that are not UTF-8 are replaced instead of throwing.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace braid::plan
