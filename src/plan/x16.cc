#include "plan/x16.h"

#include <algorithm>
#include <cmath>

#include "plan/solve.h"

namespace braid::plan {

namespace {

const LinkCost* cost_of(fabric::LinkKind kind, std::span<const fabric::Link> links,
                        std::span<const LinkCost> costs) {
  for (size_t i = 0; i < links.size(); ++i)
    if (links[i].kind == kind && costs[i].algbw_gbps > 0) return &costs[i];
  return nullptr;
}

// Request bytes per ns. The root of a broadcast sends everything to every reader: nobody forwards.
double nic_algbw_gbps(const Request& request, const LinkCost& nic) {
  return request.op == Op::kBroadcast ? nic.algbw_gbps / std::max(1, request.num_ranks - 1)
                                      : nic.algbw_gbps;
}

}  // namespace

uint32_t rdma_room(const Request& request, std::span<const fabric::Link> links,
                   uint32_t pcie_parts) {
  const uint32_t left = kWhole - std::min(pcie_parts, kWhole);
  const std::vector<LinkCost> costs = costs_from_facts(request, links);
  const LinkCost* const nic = cost_of(fabric::LinkKind::kRdma, links, costs);
  if (nic == nullptr) return left;
  const LinkCost* const pcie = cost_of(fabric::LinkKind::kPcie, links, costs);
  const auto bytes = static_cast<double>(request.bytes);
  const double call_ns = equal_finish(bytes, costs, 0).finish_ns;
  double free_ns = call_ns;  // of the x16, in which it could carry at its full rate
  const bool is_shared = pcie != nullptr && pcie->resource >= 0 && pcie->resource == nic->resource;
  if (is_shared) free_ns -= bytes * pcie_parts / kWhole / pcie->algbw_gbps * pcie->load;
  const double algbw_gbps = nic_algbw_gbps(request, *nic);
  const double by_nic = algbw_gbps * (call_ns - nic->latency_ns);
  const double by_x16 = is_shared ? algbw_gbps / nic->load * free_ns : by_nic;
  const double room = std::min(by_nic, by_x16) / bytes * kWhole;
  return static_cast<uint32_t>(std::clamp(std::floor(room), 0.0, static_cast<double>(left)));
}

}  // namespace braid::plan
