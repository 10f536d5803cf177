// Several nodes: what one call puts on each node's cable and inside each node, in its stages: each
// node's bytes cross its cable once and are spread, or summed, inside. The counts are those of the
// schedule as it runs (coll/nodes/schedule.h; tests/coll/nodes compares them piece by piece).
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace braid::plan {

struct NodeShape {
  int num_nodes = 1;
  int per_node = 1;
};

/// Bytes of one call in one direction; of the busiest node or rank, all being equally busy but for
/// rounding.
struct NodeTraffic {
  double cable_bytes = 0;   // leave a node for others, all its ranks together
  double inside_bytes = 0;  // leave a rank for others of its node
};

/// For all_gather, reduce_scatter and all_reduce; `request.bytes` as ever. Zero for other
/// operations, which have no stages, and for one node.
NodeTraffic staged_traffic(const Request& request, const NodeShape& shape) noexcept;

}  // namespace braid::plan
