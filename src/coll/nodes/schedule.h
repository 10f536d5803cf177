// The schedule of collectives over k nodes of g ranks: who passes what to whom, and when. Rules and
// no motion: pure functions of the map and a rank, the same on the host and on GPUs.
//
// Only ranks of one rail (one local index) speak between nodes, so every byte that a node needs
// crosses its cable once and is spread inside the node.
//
//   all_gather      A rank spreads its own block inside its node and sends it along its rail: in
//                   step s to node + s, while it receives from node - s. What arrives along the
//                   rail goes on to the other ranks of the node, cell by cell, while the next cells
//                   are still on the cable. Everything lands in its final place.
//
//        node 0   0 ──block 0──> 2   node 1        own block: also 0 -> 1 and 2 -> 3
//                 1 <──block 3── 3                 arrivals:  1 passes block 3 to 0, 2 block 0 to 3
//
//   reduce_scatter  The mirror image. Block b is summed inside every node by the rank there that
//                   lies on b's rail; that partial goes along the rail to b, which adds the
//                   partials of all nodes in the order of nodes. Other nodes' blocks come first,
//                   the node's own last: the cable is busy from the start.
//
//   all_reduce      A reduce_scatter whose every reduced cell starts an all_gather of itself.
//
// No two steps wait for each other in a ring: a cell that is passed on waits only for one arrival
// along a rail, a partial only for operands from inside its node, and what a rank begins with waits
// for nothing. So there is no deadlock, whatever the order of arrivals and however few pieces a
// lane may hold; tests/coll/nodes/schedule_test.cc runs it for all k <= 16 and g <= 8.
#pragma once

#include "fabric/node_map.h"

namespace braid::coll::nodes {

using fabric::NodeMap;

/// The steps of a rail, 1 to num_nodes - 1: in step s a rank sends to rail_to and receives from
/// rail_from.
constexpr int rail_to(const NodeMap& map, int rank, int step) {
  return map.rank_at((map.node_of(rank) + step) % map.num_nodes, map.local_of(rank));
}
constexpr int rail_from(const NodeMap& map, int rank, int step) {
  return map.rank_at((map.node_of(rank) + map.num_nodes - step) % map.num_nodes,
                     map.local_of(rank));
}

/// The other ranks of a node in the order in which `rank` serves them: no two begin with the same.
/// `step` is 1 to per_node - 1.
constexpr int node_peer(const NodeMap& map, int rank, int step) {
  return map.rank_at(map.node_of(rank), (map.local_of(rank) + step) % map.per_node);
}

/// reduce_scatter: the node whose blocks are the i-th that `rank` gives its operands for; its own
/// is the last.
constexpr int reduced_node(const NodeMap& map, int rank, int i) {
  return (map.node_of(rank) + 1 + i) % map.num_nodes;
}
/// Who on rank's node adds this node's operands of block `block`.
constexpr int node_reducer(const NodeMap& map, int rank, int block) {
  return map.rank_at(map.node_of(rank), map.local_of(block));
}

static_assert(rail_to({2, 2}, 0, 1) == 2 && rail_from({3, 2}, 1, 1) == 5);
static_assert(node_peer({2, 4}, 6, 3) == 5);
static_assert(reduced_node({3, 2}, 2, 0) == 2 && reduced_node({3, 2}, 2, 2) == 1);
static_assert(node_reducer({2, 2}, 3, 0) == 2);

}  // namespace braid::coll::nodes
