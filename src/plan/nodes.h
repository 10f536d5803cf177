// Several nodes: what one call puts on each node's cable and inside each node, and how long that
// takes, by three schedules. The counts are those of the schedules as they run
// (coll/nodes/schedule.h; tests/coll/nodes compares them piece by piece); times are a model, and a
// call's real time is a record's to say.
//
//   staged  each node's bytes cross its cable once and are spread, or summed, inside
//   flat    braid's direct schedule between CPUs: every rank to every rank, straight
//   ring    NCCL's and Gloo's: once around all ranks, node after node
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
NodeTraffic flat_traffic(const Request& request, const NodeShape& shape) noexcept;
NodeTraffic ring_traffic(const Request& request, const NodeShape& shape) noexcept;

/// What carries them.
struct NodeRates {
  double cable_gbps = 0;   // of a node's NICs together, one direction
  double inside_gbps = 0;  // of a rank, one direction
};
/// When both go on at once, which the schedules see to: the slower one's time, and which it is.
struct NodeTime {
  double ns = 0;
  bool cable_limits = true;
};
NodeTime time_of(const NodeTraffic& traffic, const NodeRates& rates) noexcept;

}  // namespace braid::plan
