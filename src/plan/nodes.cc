#include "plan/nodes.h"

namespace braid::plan {

namespace {

// Phases of one all_gather each: an all_reduce is a reduce_scatter and one.
int phases_of(Op op) noexcept {
  if (op == Op::kAllGather || op == Op::kReduceScatter) return 1;
  return op == Op::kAllReduce ? 2 : 0;
}

struct NodeParts {
  double bytes, nodes, ranks, per_node;
  bool are_several;
};

NodeParts node_parts_of(const Request& request, const NodeShape& shape) noexcept {
  const double k = shape.num_nodes, g = shape.per_node;
  return {static_cast<double>(request.bytes) * phases_of(request.op), k, k * g, g,
          shape.num_nodes > 1};
}

}  // namespace

NodeTraffic staged_traffic(const Request& request, const NodeShape& shape) noexcept {
  const NodeParts p = node_parts_of(request, shape);
  if (!p.are_several) return {};
  // Inside, a rank passes the blocks of its rail on to the others of its node.
  return {p.bytes * (p.nodes - 1) / p.nodes, p.bytes * (p.per_node - 1) / p.per_node};
}

}  // namespace braid::plan
