#include "fabric/hash.h"

#include <fmt/format.h>

#include <cmath>

#include "base/hash.h"

namespace braid::fabric {

namespace {

// Four classes per doubling: what the driver reports as 26.5 and as 26.6 is one thing.
int rate_class(double gbps) {
  return gbps > 0 ? static_cast<int>(std::lround(4 * std::log2(gbps))) : -1000;
}

std::string words_of(const Node& node) {
  std::string text;
  for (const Cpu& cpu : node.cpus) text += fmt::format("cpu {} cores;", cpu.num_cores);
  for (const Gpu& gpu : node.gpus)
    text += fmt::format("gpu {} nvlinks {} at {} pcie {}x{} numa {};", gpu.name, gpu.num_nvlinks,
                        rate_class(gpu.nvlink_gbps), gpu.pcie_gen, gpu.pcie_width, gpu.numa_node);
  for (const Nic& nic : node.nics)
    if (nic.is_up)
      text += fmt::format("nic {} at {} numa {};", nic.provider, rate_class(nic.rate_gbps),
                          nic.numa_node);
  return text;
}

std::string words_of(const Link& link) {
  const bool is_given = link.source == Source::kPaced || link.source == Source::kSpecified;
  return fmt::format(
      "link {} {} at {} shares '{}';", link.name, link_kind_name(link.kind),
      is_given ? fmt::format("{} {}", source_name(link.source), rate_class(link.rate_gbps)) : "any",
      link.shares_with);
}

}  // namespace

std::string fingerprint(const Fabric& fabric) {
  std::string text = "braid fabric 1\n";
  for (const Node& node : fabric.nodes) text += "node: " + words_of(node) + "\n";
  for (const Link& link : fabric.links) text += words_of(link) + "\n";
  text += "ranks on nodes:";
  for (const int node : fabric.node_of_rank) text += fmt::format(" {}", node);
  return text + "\n";
}

std::string text_hash(const std::string& text) { return fmt::format("{:016x}", fnv1a(text)); }

std::string fabric_hash(const Fabric& fabric) { return text_hash(fingerprint(fabric)); }

}  // namespace braid::fabric
